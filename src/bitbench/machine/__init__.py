"""What this computer is, and what else it does."""

"""What this machine is, how steady it is, and what an instance uses of it."""

"""Reads the facts about this computer, and watches the other work on it."""

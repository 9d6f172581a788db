"""The study folder: append, read, continue."""

"""The forms in which such records are published elsewhere."""

"""Documents of their own: one file per question that a command answers."""

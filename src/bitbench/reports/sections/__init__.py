"""One file per question that a report answers."""

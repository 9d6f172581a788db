"""URL → records: first contact, sweeps, and the search for the highest rate."""

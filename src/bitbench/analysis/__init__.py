"""Every number that follows from records, pure: no I/O, no clock, and the same seed gives the same digits."""

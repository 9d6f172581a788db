"""Everything computed from records: no I/O, no clock, and the same seed gives the same digits."""

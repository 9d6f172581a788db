"""The measurement of quality: a corpus in token windows, and an endpoint's answers about it."""

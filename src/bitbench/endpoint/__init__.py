"""Measures an endpoint by its URL: first contact, sweeps, and the search for the highest rate."""

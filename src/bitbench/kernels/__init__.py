"""Kernels: cases that compute the same product in different formats, timed against each other on this machine."""

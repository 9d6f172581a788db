"""Operator profiles: asking an instance for one, reading what torch's profiler wrote, and grouping it."""

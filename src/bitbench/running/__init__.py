"""Turns a plan into records: the main loop, its blocks, groups and trials."""

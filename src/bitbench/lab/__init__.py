"""Joins the stages: what a command does, callable without the command line. `interface` is the public part."""

"""A study's figures in the tools where people already look: one file per tool, each behind the same small port."""

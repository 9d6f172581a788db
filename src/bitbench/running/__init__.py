"""Plan → records: blocks, groups, trials, and the loop over them."""

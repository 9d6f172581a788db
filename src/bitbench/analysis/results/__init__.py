"""Types of what analysis finds: summaries, comparisons, recommendations."""

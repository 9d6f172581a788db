"""The types of results: summaries, comparisons and recommendations."""

"""What is found in the records: summaries, comparisons, explanations, recommendations."""

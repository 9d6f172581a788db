"""A summary as text, pure: every number in it comes from `analysis.results.summary`, every fact from the lock."""

"""Summaries as text: numbers come from `analysis.results.summary`, facts from the lock."""

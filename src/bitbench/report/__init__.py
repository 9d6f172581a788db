"""A summary as text, pure: every number in it comes from `core.found.summary`, every fact from the lock."""

"""A summary as text, pure: every number in it comes from `core.summary`, every fact from the lock."""

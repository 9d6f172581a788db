"""HTTP with a server that may be hostile: one response as its bytes arrive, one request, and the limits of both."""

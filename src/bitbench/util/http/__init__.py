"""HTTP with servers that may be hostile: responses, requests, and the limits of both."""

"""Request rows in numbers: the one place where times of requests, and figures of a trial, are computed from them."""

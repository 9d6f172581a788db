"""A redirect is not followed: the key would go to an address that was not given, or unencrypted over the network."""

from collections.abc import Mapping

from bitbench.util.quotation import quote

REDIRECTS = frozenset((301, 302, 303, 307, 308))


def redirection(headers: Mapping[str, str], key: str) -> str:
    """Where it leads and what to do, as the end of a sentence about the server."""
    place = quote(headers.get("location", ""), key)
    to = f"to {place}; if that is meant, give its address" if place else "without saying where"
    return f"it redirects {to} (bitbench follows no redirect, so that the key goes nowhere else)"

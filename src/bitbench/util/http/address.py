"""Where a server is, read from its URL."""

from typing import NamedTuple
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


class Address(NamedTuple):
    host: str
    port: int
    tls: bool

    @property
    def header(self) -> str:
        """As the header `Host` says it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(url: str) -> Address:
    """Where to connect. Anything but http://host:port and https://host:port is refused here."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or parts.hostname is None or parts.path not in ("", "/"):
        raise ValueError(f"the endpoint {url!r} should look like http://host:port or https://host:port")
    return Address(parts.hostname, parts.port or _PORTS[parts.scheme], parts.scheme == "https")

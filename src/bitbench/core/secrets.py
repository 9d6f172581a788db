"""Names of arguments and variables whose values are never shown."""

import re

_SECRET = re.compile(r"api[-_]?key|token$|secret|password|credential", re.IGNORECASE)


def is_secret(name: str) -> bool:
    return _SECRET.search(name) is not None

"""Names of arguments and variables with secret values, and the places that may contain them."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

from bitbench.study.base import Json
from bitbench.util.text import HIDDEN

_SECRET = re.compile(
    r"api[-_]?key|access[-_]?key|private[-_]?key|token$|secret|passw|passphrase|credential|authorization"
    r"|(^|[-_])(key|auth|pwd)$",
    re.IGNORECASE,
)
# Characters of a value that is searched for in other texts. "none" and "true" are not secrets.
_SHORTEST = 6


def is_secret(name: str) -> bool:
    """Return True if an argument or variable with this name holds a secret."""
    return _SECRET.search(name) is not None


def hide_secret_options(words: Sequence[str]) -> list[str]:
    """Return a command with the values of secret options hidden: `--api-key X`, `--api-key=X`."""
    result: list[str] = []
    for word in words:
        name, equals, _ = word.partition("=")
        if result and _is_secret_option(result[-1]) and not word.startswith("-"):
            result.append(HIDDEN)
        elif equals and _is_secret_option(name):
            result.append(f"{name}={HIDDEN}")
        else:
            result.append(word)
    return result


def _is_secret_option(name: str) -> bool:
    return name.startswith("-") and is_secret(name)


def iter_secret_values(content: Json) -> Iterator[str]:
    """Yield the values of all fields with a secret name, at any depth.

    `api_key_env` holds the name of a variable, so its value is not a secret.
    """
    if isinstance(content, dict):
        for name, value in content.items():
            if not isinstance(value, str) or not is_secret(name) or name.endswith("_env"):
                yield from iter_secret_values(value)
            elif len(value) >= _SHORTEST:
                yield value
    elif isinstance(content, list):
        for item in content:
            yield from iter_secret_values(item)
    elif isinstance(content, str) and content.startswith("{"):  # an argument that is JSON
        with suppress(ValueError, RecursionError):
            yield from iter_secret_values(json.loads(content))

"""Names of arguments and variables whose values are never shown, and where such values may stand."""

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
_SHORTEST = (
    6  # characters of a value that is looked for in other texts; "none" and "true" are no secrets
)


def is_secret(name: str) -> bool:
    return _SECRET.search(name) is not None


def without_secret_options(words: Sequence[str]) -> list[str]:
    """A command in which no option with such a name has its value: `--api-key X`, `--api-key=X`."""
    shown: list[str] = []
    for word in words:
        name, equals, _ = word.partition("=")
        if (
            shown
            and is_secret(shown[-1])
            and shown[-1].startswith("-")
            and not word.startswith("-")
        ):
            shown.append(HIDDEN)
        else:
            shown.append(
                f"{name}={HIDDEN}" if equals and name.startswith("-") and is_secret(name) else word
            )
    return shown


def secret_values(content: Json) -> Iterator[str]:
    """The values of all fields with such a name, however deep they lie. `api_key_env` has the name of a variable."""
    if isinstance(content, dict):
        for name, value in content.items():
            if isinstance(value, str) and is_secret(name) and not name.endswith("_env"):
                yield from [value] if len(value) >= _SHORTEST else []
            else:
                yield from secret_values(value)
    elif isinstance(content, list):
        for item in content:
            yield from secret_values(item)
    elif isinstance(content, str) and content.startswith("{"):  # an argument that is JSON
        with suppress(ValueError, RecursionError):
            yield from secret_values(json.loads(content))

"""Words from elsewhere (a study, an engine, a server) as one harmless line; escaping is the renderers' own."""

import re
import unicodedata

MAX_NAME = 80
MAX_TEXT = 400
MAX_LOG_LINE = 300

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def visible(text: str) -> str:
    """One line without control, colour or direction characters."""
    shown = "".join(" " if unicodedata.category(char).startswith(("C", "Z")) else char for char in _ANSI.sub("", text))
    return " ".join(shown.split())


def plain(text: str, limit: int = MAX_TEXT) -> str:
    """The same, not longer than `limit`."""
    line = visible(text)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def inline(text: str, limit: int = 4 * MAX_TEXT) -> str:
    """A part of a phrase: the spaces at its ends stay, since they belong to the sentence."""
    line = plain(text, limit)
    if not line:
        return " " if text[:1].isspace() else ""
    return f"{' ' if text[0].isspace() else ''}{line}{' ' if text[-1].isspace() else ''}"

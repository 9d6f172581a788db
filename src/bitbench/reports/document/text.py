"""Words from elsewhere (a study, an engine, a server) as one harmless line; escaping is the renderers' own."""

import re

from bitbench.util.visible import visible

MAX_NAME = 80
MAX_TEXT = 400
MAX_LOG_LINE = 300

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def one_line(text: str) -> str:
    """Without colours and movements of the cursor, and with what a reader could not see spelled out."""
    return visible(" ".join(_ANSI.sub("", text).split()))


def plain(text: str, limit: int = MAX_TEXT) -> str:
    """The same, not longer than `limit`."""
    line = one_line(text)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def inline(text: str, limit: int = 4 * MAX_TEXT) -> str:
    """A part of a phrase: the spaces at its ends stay, since they belong to the sentence."""
    line = plain(text, limit)
    if not line:
        return " " if text[:1].isspace() else ""
    return f"{' ' if text[0].isspace() else ''}{line}{' ' if text[-1].isspace() else ''}"

"""Words from outside (a server, a log, a name): shown without a key, on one line, with nothing hidden; and what was
probably meant by them.

First the key is hidden, then the words are shortened, then made printable: shortening first would leave a part of a
key that is not recognized.
"""

import difflib
import re
import unicodedata
from collections.abc import Iterable
from urllib.parse import quote_plus

HIDDEN = "***"
QUOTED_LENGTH = 400  # characters of foreign words that a record keeps
_SHORTEST_KEY = (
    4  # "EMPTY" is a key in use; shorter ones are no secret, and would be found in every word
)
# Characters that are looked at: a long body costs no time, and what comes after them is not shown.
_READ_LENGTH = 65_536


def quote(said: str | bytes, key: str, limit: int = QUOTED_LENGTH) -> str:
    """Return one line of printable text, `limit` characters at most before what cannot be printed is written as
    escapes, and without the key."""
    text = (
        said[: 4 * _READ_LENGTH].decode("utf-8", errors="replace")
        if isinstance(said, bytes)
        else said
    )
    return printable(" ".join(text_without_key(text, key)[:_READ_LENGTH].split()), limit)


def text_without_key(text: str, key: str) -> str:
    """Return the same text with the key hidden, as it is and as a URL holds it."""
    if len(key) < _SHORTEST_KEY:
        return text
    return text.replace(key, HIDDEN).replace(quote_plus(key), HIDDEN)


def printable(text: str, limit: int = QUOTED_LENGTH) -> str:
    """Shortened, and what cannot be printed (or not be encoded) written as escapes; for words that hold no key."""
    text = text.replace("\t", "    ")
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def encodable(text: str) -> str:
    """A whole text that is kept as it is, but for what no file can hold: half of a surrogate pair."""
    return text.encode("utf-8", errors="backslashreplace").decode("utf-8")


# Control, format (direction, zero width), surrogate, private use; ends of lines and paragraphs.
_ESCAPED = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
# Shown as nothing although they count as letters or marks: fillers, and selectors that can carry hidden bytes.
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\uffa0\U000e0100-\U000e01ef]"
)
_KEPT = "\n\t"


def visible(text: str) -> str:
    r"""The same text, with `\x1b`, `\u202e` and their like spelled out; lines and tabs stay."""
    if text.isprintable() and not _BLANK.search(text):
        return text
    return "".join(_spelled(char) if _is_hidden(char) else char for char in text)


def _is_hidden(char: str) -> bool:
    return char not in _KEPT and (
        unicodedata.category(char) in _ESCAPED or bool(_BLANK.match(char))
    )


def _spelled(char: str) -> str:
    code = ord(char)
    return (
        f"\\x{code:02x}"
        if code <= 0xFF
        else f"\\u{code:04x}"
        if code <= 0xFFFF
        else f"\\U{code:08x}"
    )


LEAST_BEGUN = 3  # characters: fewer begin too many names


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean `tpot`? `, to go into a sentence; empty where nothing is near. Who wrote the beginning of a name
    meant that one: `output` is `output_throughput`."""
    names = list(known)
    begun = [other for other in names if len(name) >= LEAST_BEGUN and other.startswith(name)]
    guess = begun or difflib.get_close_matches(name, names, n=1)
    return f"did you mean `{guess[0]}`? " if guess else ""

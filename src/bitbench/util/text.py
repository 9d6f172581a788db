"""Text from outside (a server, a log, a name), printed safely: without a key, on one line, with
hidden characters escaped. Also suggestions for misspelled names.

The order matters: hide the key, shorten, then escape. Shortening first would leave a part of a
key that is not recognized.
"""

import difflib
import re
import unicodedata
from collections.abc import Iterable
from urllib.parse import quote_plus

HIDDEN = "***"
QUOTED_LENGTH = 400  # characters of foreign text that a record keeps
# "EMPTY" is a key in use. Shorter keys are not secret, and would match in every word.
_SHORTEST_KEY = 4
# Only this many characters of a body are read, so that a long body costs no time.
_READ_LENGTH = 65_536


def quote(message: str | bytes, key: str, limit: int = QUOTED_LENGTH) -> str:
    """Return a message without the key, as one line of printable text.

    It has at most `limit` characters before unprintable characters are written as escapes.
    """
    if isinstance(message, bytes):
        message = message[: 4 * _READ_LENGTH].decode("utf-8", errors="replace")
    words = hide_key(message, key)[:_READ_LENGTH].split()
    return format_printable(" ".join(words), limit)


def hide_key(text: str, key: str) -> str:
    """Return the text with the key hidden, in plain form and in URLs."""
    if len(key) < _SHORTEST_KEY:
        return text
    return text.replace(key, HIDDEN).replace(quote_plus(key), HIDDEN)


def format_printable(text: str, limit: int = QUOTED_LENGTH) -> str:
    """Return a shortened text with escapes for unprintable characters. It must not hold a key."""
    text = text.replace("\t", "    ")
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return "".join(map(_escape_unprintable, text))


def _escape_unprintable(char: str) -> str:
    if char.isprintable():
        return char
    return char.encode("unicode_escape").decode("ascii")


def escape_surrogates(text: str) -> str:
    """Return the whole text, with lone surrogates escaped because no file can store them."""
    return text.encode("utf-8", errors="backslashreplace").decode("utf-8")


# Control, format (direction, zero width), surrogate, private use, ends of lines and paragraphs.
_ESCAPED = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
# Invisible although they count as letters or marks: fillers, and selectors that can carry hidden
# bytes.
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\uffa0\U000e0100-\U000e01ef]"
)
_KEPT = "\n\t"


def escape_hidden(text: str) -> str:
    r"""Return the text with `\x1b`, `\u202e` and similar characters escaped, except line breaks."""
    if text.isprintable() and not _BLANK.search(text):
        return text
    return "".join(map(_escape_char, text))


def _escape_char(char: str) -> str:
    """Return the character, or its escape if it is hidden."""
    is_hidden = unicodedata.category(char) in _ESCAPED or _BLANK.match(char)
    if char in _KEPT or not is_hidden:
        return char
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"


LEAST_BEGUN = 3  # characters, because fewer match the beginning of too many names


def suggest_name(name: str, names: Iterable[str]) -> str:
    """Return "did you mean `tpot`? " as a part of a sentence, or "" if no name is similar.

    The beginning of a name means that name: `output` is `output_throughput`.
    """
    names = list(names)
    guesses = difflib.get_close_matches(name, names, n=1)
    if len(name) >= LEAST_BEGUN:
        guesses = [other for other in names if other.startswith(name)] or guesses
    if not guesses:
        return ""
    return f"did you mean `{guesses[0]}`? "

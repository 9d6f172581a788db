"""Characters that a terminal obeys or hides, written out: a name from elsewhere can be read and does nothing else."""

import re
import unicodedata

# Control, format (direction, zero width), surrogate, private use; ends of lines and paragraphs.
_ESCAPED = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
# Shown as nothing although they count as letters or marks: fillers, and selectors that can carry hidden bytes.
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\uffa0\U000e0100-\U000e01ef]")
_KEPT = "\n\t"


def visible(text: str) -> str:
    r"""The same text, with `\x1b`, `\u202e` and their like spelled out; lines and tabs stay."""
    if text.isprintable() and not _BLANK.search(text):
        return text
    return "".join(_spelled(char) if _is_hidden(char) else char for char in text)


def _is_hidden(char: str) -> bool:
    return char not in _KEPT and (unicodedata.category(char) in _ESCAPED or bool(_BLANK.match(char)))


def _spelled(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"

"""Files that were cut, altered, repeated or filled with lies: what hypothesis makes of an honest one."""

import json
from typing import Any

from hypothesis import strategies as st

LIES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 255, 2**31, 2**53, 2**63, 2**64 - 1, -(2**63), 10**400, 1e308, -1e308, 5e-324, 0.5,
    float("nan"), float("inf"), "", "x", "0", "-1", "1e999", "NaN", "\ud800", "\x00", "\u202e", "\x1b[31m", "a/b/../c",
    "x" * 5_000, [], [None], [1, "x"], [[[]]], {}, {"x": {"y": []}}, {"name": None}, {"avg": "x", "unit": 3},
]  # fmt: skip
PIECES = [
    b"", b"\x00", b"\xff", b"\xff" * 8, b"\x00" * 8, b"\x7f" + b"\xff" * 7, b"\n", b"|", b"-", b"0", b"9" * 30,
    b"1e400",
    b"9" * 400, b"{", b"[", b'"', b",", b"[" * 3_000, b"null", b"NaN", b"\\ud800", b"\xc3\xa2", b"**", b"+====", b"||",
    b" ms", b"`", b"\t",
]  # fmt: skip
KINDS = ("cut", "replace", "repeat", "remove", "lie", "lie", "drop")
SHARE = st.integers(min_value=0, max_value=2**20 - 1)


def mutations(original: bytes) -> st.SearchStrategy[bytes]:
    """One to four changes: of bytes, and of values where the file is JSON (one object per line, too)."""
    change = st.tuples(st.sampled_from(KINDS), SHARE, SHARE, SHARE)
    return st.lists(change, min_size=1, max_size=4).map(lambda changes: changed(original, changes))


def changed(content: bytes, changes: list[tuple[str, int, int, int]]) -> bytes:
    for kind, first, second, third in changes:
        if kind in ("lie", "drop"):
            content = _lied(content, kind, first, second)
        else:
            content = _cut(content, kind, first, second, third)
    return content


def _cut(content: bytes, kind: str, first: int, second: int, third: int) -> bytes:
    start = _place(first, len(content) + 1)
    length = _place(second, 40) if second % 2 else _place(second, len(content) + 1)
    if kind == "cut":
        return content[:start]
    if kind == "remove":
        return content[:start] + content[start + length :]
    if kind == "repeat":
        return content[: start + length] + content[start:]
    return content[:start] + PIECES[third % len(PIECES)] + content[start + length % 12 :]


def _lied(content: bytes, kind: str, first: int, second: int) -> bytes:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return _cut(content, "replace", first, second, second)
    places = list(_places(value))
    if not places:
        return content
    owner, key = places[_place(first, len(places))]
    if kind == "drop":
        del owner[key]
    else:
        owner[key] = LIES[second % len(LIES)]
    return json.dumps(value).encode()


def _places(value: Any) -> Any:
    keys = (
        range(len(value)) if isinstance(value, list) else value if isinstance(value, dict) else ()
    )
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _place(share: int, of: int) -> int:
    return share * of >> 20

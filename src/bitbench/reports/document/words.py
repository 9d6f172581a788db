"""Building sentences from words, names and numbers."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from bitbench.reports.document.model import Bullets, Name, Paragraph, Part, Phrase, Strong
from bitbench.util.units import UNKNOWN

Words = Part | Phrase | None  # what a sentence may be built from; None: not known


def say(*parts: Words) -> Phrase:
    """One phrase: `say("Use ", Name("w8a8"), ".")`."""
    known = (UNKNOWN if part is None else part for part in parts)
    return tuple(piece for part in known for piece in (part if isinstance(part, tuple) else (part,)))


def strong(*parts: Words) -> Phrase:
    return (Strong(say(*parts)),)


def names(texts: Iterable[str]) -> list[Phrase]:
    return [(Name(text),) for text in texts]


def joined(parts: Iterable[Words], separator: str) -> Phrase:
    return say(*(word for place, part in enumerate(parts) for word in (*([separator] if place else []), part)))


def listing(parts: Sequence[Words], last: str = "and", *, most: int | None = None) -> Phrase:
    """`a`, `a and b`, `a, b and c`; beyond `most`, `a, b and 3 more`."""
    if most is not None and len(parts) > most:
        parts = [*parts[:most], f"{len(parts) - most:,} more"]
    if len(parts) < 2:
        return say(*parts)
    return say(joined(parts[:-1], ", "), f" {last} ", parts[-1])


def counted(words: Iterable[str]) -> str:
    """`crashed, oom (2)`."""
    groups = [(word, len(list(same))) for word, same in groupby(sorted(words))]
    return ", ".join(word if count == 1 else f"{word} ({count})" for word, count in groups)


def plural(count: int, noun: str) -> str:
    """`1 cell`, `2 cells`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def paragraph(*parts: Words) -> Paragraph:
    return Paragraph(say(*parts))


def small_print(*parts: Words) -> Paragraph:
    return Paragraph(say(*parts), is_small_print=True)


def bullets(sentences: Iterable[Words]) -> tuple[Bullets, ...]:
    """One list, or nothing at all: to be unpacked into the blocks of a section."""
    items = tuple(say(sentence) for sentence in sentences)
    return (Bullets(items),) if items else ()

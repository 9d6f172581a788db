"""Building sentences from words, names and numbers."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from bitbench.report.document.model import Bullets, Column, Name, Paragraph, Part, Phrase, Strong, Unit

Words = Part | Phrase  # what a sentence may be built from


def say(*parts: Words) -> Phrase:
    """One phrase: `say("Use ", Name("w8a8"), ".")`."""
    return tuple(one for part in parts for one in (part if isinstance(part, tuple) else (part,)))


def strong(*parts: Words) -> Phrase:
    return (Strong(say(*parts)),)


def names(texts: Iterable[str]) -> list[Phrase]:
    return [(Name(text),) for text in texts]


def joined(parts: Sequence[Words], separator: str) -> Phrase:
    return say(*(word for place, part in enumerate(parts) for word in (*([separator] if place else []), part)))


def listing(parts: Sequence[Words], last: str = "and") -> Phrase:
    """`a`, `a and b`, `a, b and c`."""
    if len(parts) < 2:
        return say(*parts)
    return say(joined(parts[:-1], ", "), f" {last} ", parts[-1])


def counted(words: Iterable[str]) -> str:
    """`crashed, oom (2)`."""
    groups = [(word, len(list(same))) for word, same in groupby(sorted(words))]
    return ", ".join(word if count == 1 else f"{word} ({count})" for word, count in groups)


def plural(count: int, noun: str, several: str | None = None) -> str:
    """`1 cell`, `2 cells`."""
    return f"{count:,} {noun if count == 1 else several or f'{noun}s'}"


def paragraph(*parts: Words) -> Paragraph:
    return Paragraph(say(*parts))


def small_print(*parts: Words) -> Paragraph:
    return Paragraph(say(*parts), is_small_print=True)


def bullets(sentences: Iterable[Words]) -> tuple[Bullets, ...]:
    """One list, or nothing at all: to be unpacked into the blocks of a section."""
    items = tuple(say(one) for one in sentences)
    return (Bullets(items),) if items else ()


def words_column(title: Words, *, shown_from: int = 0) -> Column:
    return Column(say(title), is_words=True, shown_from=shown_from)


def number_column(title: Words, unit: str = Unit.NONE, *, shown_from: int = 0, intervals_from: int = 130) -> Column:
    return Column(say(title), unit, shown_from=shown_from, intervals_from=intervals_from)

"""Names of configs that fit into a figure, a sentence or a terminal: what all share is said once, and what is alike
is told together."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import copy
from typing import TypeVar

from bitbench.analysis.results.summary import StudySummary
from bitbench.reports.document.words import plain_words
from bitbench.study.plan import Config

MAX_LABEL = 48
CHOSEN, FLAGGED = (
    "★",
    "✗",
)  # before a name: what the answer recommends, and what lost too much quality


class Labels:
    """Short names, no two alike. What all configs share is said once, in `shared`: `Model: smollm2-135m.`"""

    def __init__(self, configs: Iterable[Config], limit: int = MAX_LABEL) -> None:
        known = list(dict.fromkeys(configs))
        names = [config.name for config in known]
        model = _same(config.variant.partition("/")[0] for config in known if "/" in config.variant)
        engine = _same(config.engine for config in known)
        several = len(known) > 1
        prefix = (
            f"{model}/"
            if several and model and all(name.startswith(f"{model}/") for name in names)
            else ""
        )
        suffix = (
            f" @ {engine}"
            if several and engine and all(name.endswith(f" @ {engine}") for name in names)
            else ""
        )
        shorts = _distinct_labels(
            [name.removeprefix(prefix).removesuffix(suffix) for name in names], limit
        )
        self._limit, self._prefix, self._suffix = limit, prefix, suffix
        self._marks: Mapping[Config, str] = {}
        self._of = dict(zip(known, shorts, strict=True))
        said = [
            f"Model: {prefix.removesuffix('/')}." if prefix else "",
            f"Engine: {engine}." if suffix else "",
        ]
        self.shared = plain_words(
            " ".join(part for part in said if part)
        )  # in words; empty where they share nothing

    def __getitem__(self, config: Config) -> str:
        return f"{self.mark(config)} {self.name(config)}".strip()

    def mark(self, config: Config) -> str:
        return self._marks.get(config, "")

    def marked(self, marks: Mapping[Config, str]) -> "Labels":
        """The same names, with what an answer says of them."""
        other = copy(self)
        other._marks = marks
        return other

    def name(self, config: Config) -> str:
        """Without a mark."""
        if config in self._of:
            return self._of[config]
        short = config.name.removeprefix(self._prefix).removesuffix(self._suffix)
        return plain_words(config.name if short in self._of.values() else short, self._limit) or "?"

    @classmethod
    def of(cls, summary: StudySummary, limit: int = MAX_LABEL) -> "Labels":
        """Of every config that was measured; one that was only refused lacks what these share, too."""
        timed = [point.point.config for point in summary.points]
        return cls([*timed, *(row.config for row in summary.quality)], limit)


def _distinct_labels(names: Sequence[str], limit: int = MAX_LABEL) -> list[str]:
    """No longer than `limit`, and no two alike."""
    found: list[str] = []
    for name in names:
        short = plain_words(name, limit) or "?"
        numbered = (f"{short} ({number})" for number in range(2, len(names) + 2))
        found.append(
            short if short not in found else next(free for free in numbered if free not in found)
        )
    return found


def _same(words: Iterable[str]) -> str | None:
    found = set(words)
    return found.pop() if len(found) == 1 else None


Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """By what they share, in the order in which that first appears."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups

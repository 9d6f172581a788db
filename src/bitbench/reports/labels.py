"""Short names of configs for charts, sentences and tables, and a way to group items."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import copy
from typing import TypeVar

from bitbench.analysis.results.summary import StudySummary
from bitbench.reports.document.model import Phrase
from bitbench.reports.document.words import format_names, format_plain_words
from bitbench.study.plan import Config

MAX_LABEL = 48
CHOSEN = "★"  # before a name: recommended by the answer
FLAGGED = "✗"  # before a name: lost too much quality


class Labels:
    """Short and distinct names of configs.

    A model or an engine that all configs share is left out of the names. `shared` names it in
    words: `Model: smollm2-135m.` It is empty if the configs share neither.
    """

    def __init__(self, configs: Iterable[Config], limit: int = MAX_LABEL) -> None:
        distinct = list(dict.fromkeys(configs))
        names = [config.name for config in distinct]
        self._limit = limit
        self._prefix = ""
        self._suffix = ""
        self._marks: Mapping[Config, str] = {}
        shared = []
        if len(names) > 1:
            variants = [config.variant for config in distinct if "/" in config.variant]
            model = _find_common(variant.partition("/")[0] for variant in variants)
            if model and all(name.startswith(f"{model}/") for name in names):
                self._prefix = f"{model}/"
                shared.append(f"Model: {model}.")
            engine = _find_common(config.engine for config in distinct)
            if engine and all(name.endswith(f" @ {engine}") for name in names):
                self._suffix = f" @ {engine}"
                shared.append(f"Engine: {engine}.")
        self.shared = format_plain_words(" ".join(shared))
        shorts = _make_distinct_labels([self._strip_shared(name) for name in names], limit)
        self._names = dict(zip(distinct, shorts, strict=True))

    def __getitem__(self, config: Config) -> str:
        return f"{self.mark(config)} {self.name(config)}".strip()

    def mark(self, config: Config) -> str:
        """Return the ★ or ✗ of a config, or an empty text."""
        return self._marks.get(config, "")

    def marked(self, marks: Mapping[Config, str]) -> "Labels":
        """Return the same labels with the marks that an answer gives to configs."""
        other = copy(self)
        other._marks = marks
        return other

    def name(self, config: Config) -> str:
        """Return the label without its mark."""
        if config in self._names:
            return self._names[config]
        name = self._strip_shared(config.name)
        if name in self._names.values():
            name = config.name
        return format_plain_words(name, self._limit) or "?"

    def format_configs(self, configs: Iterable[Config]) -> Phrase:
        """Return the labels of configs as one phrase: `a, b and c`."""
        return format_names(self[config] for config in configs)

    def _strip_shared(self, name: str) -> str:
        return name.removeprefix(self._prefix).removesuffix(self._suffix)

    @classmethod
    def of(cls, summary: StudySummary, limit: int = MAX_LABEL) -> "Labels":
        """Return labels for every measured config. A refused one need not share their model."""
        timed = [point.point.config for point in summary.points]
        return cls([*timed, *(row.config for row in summary.quality)], limit)


def _make_distinct_labels(names: Sequence[str], limit: int = MAX_LABEL) -> list[str]:
    """Shorten names to `limit` characters, and number those that are then equal."""
    labels: list[str] = []
    for name in names:
        short = format_plain_words(name, limit) or "?"
        label = short
        number = 1
        while label in labels:
            number += 1
            label = f"{short} ({number})"
        labels.append(label)
    return labels


def _find_common(words: Iterable[str]) -> str | None:
    """Return the word if all are equal, else None."""
    distinct = set(words)
    return distinct.pop() if len(distinct) == 1 else None


Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def group_by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Group items by their key, in the order in which the keys first appear."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups

"""The declaration of a feature: what it adds to bitbench, and how bitbench finds it.

A feature is a folder below `bitbench/features` whose package has a `FEATURE`, or any package with
an entry point to one in the group `bitbench.features`. Both are treated alike. A feature declares
its parts as "module:attribute" (".module:…" within its own package). They are imported at the first
use, so `bitbench --help` does not import the code of features.

This module needs only the standard library, since the environments of workers import it too.
"""

import pkgutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from bitbench.util.plugins import warn_of_plugin

GROUP = "bitbench.features"
Target = str  # "module:attribute"


class ReportPlace(StrEnum):
    """The section of a study's report that a part belongs to. Parts of one section are sorted by
    name."""

    ANSWER = "answer"
    SPEED = "speed"
    MEMORY = "memory"
    QUALITY = "quality"
    CAUSES = "causes"  # reasons for the speed
    CONDITIONS = "conditions"  # machines, starts, method


class Panel(StrEnum):
    """The panel of a command in `bitbench --help`, in this order."""

    MEASURE = "Measure"
    DECIDE = "Decide"
    QUANTIZE = "Quantize"
    SET_UP = "Set up"
    SHARE = "Share"


@dataclass(frozen=True)
class Command:
    """A command. A feature cannot add options to another command."""

    name: str
    run: Target  # a function that typer can call
    help: str  # its line in `bitbench --help`, equal to the first line of its docstring
    panel: Panel | None = None  # None for a rare command, which only the last line of --help lists
    answer: Target | None = None  # the Record that it prints with --json
    resumes: bool = False  # True if the same command resumes an interrupted one


@dataclass(frozen=True)
class ReportPart:
    """A feature's results from the records of a study, and their part of the report."""

    name: str  # key in `StudySummary.parts` and in the report's JSON
    place: ReportPlace
    type: Target  # the Record that `compute` returns
    compute: Target  # (StudyRecords) -> Record | None
    section: Target  # (Record, StudySummary) -> Section | None
    # (Record, StudySummary) -> Iterable[Words], for the answer at the top.
    sentences: Target | None = None
    # (Record, StudySummary) -> Lead | None, the answer of a study without speed trials.
    lead: Target | None = None


@dataclass(frozen=True)
class Feature:
    """Everything that a feature adds to bitbench."""

    name: str
    commands: tuple[Command, ...] = ()
    study_keys: Mapping[str, Target] = field(default_factory=dict)  # StudySection by key
    report_parts: tuple[ReportPart, ...] = ()
    # Names by group, such as "executors". ARCHITECTURE.md lists the groups.
    offers: Mapping[str, Mapping[str, Target]] = field(default_factory=dict)
    package: str = ""  # set on discovery

    @property
    def is_built_in(self) -> bool:
        return self.package.startswith(f"{GROUP}.")


@dataclass(frozen=True)
class Offer:
    """A target that a feature declares, with the feature."""

    feature: Feature
    target: Target

    def load(self) -> Any:
        """Import the target and return it."""
        module, _, attribute = self.target.partition(":")
        return getattr(import_module(module, self.feature.package), attribute)


@cache
def features() -> Mapping[str, Feature]:
    """Return all installed features by name, built-in ones first. A feature that cannot be imported
    is skipped with a warning."""
    by_name: dict[str, Feature] = {}
    for feature in (*_iter_built_in(), *_iter_installed()):
        by_name.setdefault(feature.name, feature)
    return by_name


def collect_feature_commands() -> dict[str, tuple[Command, Offer]]:
    """Return the commands of all features by name."""
    commands: dict[str, tuple[Command, Offer]] = {}
    for feature in features().values():
        for command in feature.commands:
            commands[command.name] = (command, Offer(feature, command.run))
    return commands


def collect_feature_study_keys() -> dict[str, Offer]:
    """Return the keys of a study file that features read."""
    keys: dict[str, Offer] = {}
    for feature in features().values():
        for key, target in feature.study_keys.items():
            keys[key] = Offer(feature, target)
    return keys


def report_parts() -> list[tuple[ReportPart, Feature]]:
    """Return the report parts of all features, in the order of a report."""
    parts = [(part, feature) for feature in features().values() for part in feature.report_parts]
    return sorted(parts, key=lambda pair: (list(ReportPlace).index(pair[0].place), pair[0].name))


def collect_offers(group: str) -> dict[str, Offer]:
    """Return everything that features offer in a group, such as "executors", by name."""
    offers: dict[str, Offer] = {}
    for feature in features().values():
        for name, target in feature.offers.get(group, {}).items():
            offers[name] = Offer(feature, target)
    return offers


def load_from_features(group: str) -> dict[str, Any]:
    """Import everything that features offer in a group, and return it by name. An error in a third
    party's code becomes a warning."""
    objects: dict[str, Any] = {}
    for name, offer in collect_offers(group).items():
        with handle_feature_errors(offer.feature):
            objects[name] = offer.load()
    return objects


@contextmanager
def handle_feature_errors(feature: Feature) -> Iterator[None]:
    """Turn errors of a third party's code into warnings. An error in a built-in feature is a bug of
    bitbench and is raised."""
    try:
        yield
    except Exception as error:
        if feature.is_built_in:
            raise
        warn_of_plugin(
            f"The feature {feature.name} ({feature.package}) is left out here: "
            f"{_describe_cause(error)}"
        )


def _iter_built_in() -> Iterator[Feature]:
    """Yield the feature of every existing folder. Deleting a folder removes its feature without an
    edit elsewhere."""
    package = import_module(GROUP)
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda module: module.name):
        yield from _load_feature(f"{GROUP}.{module.name}", "FEATURE")


def _iter_installed() -> Iterator[Feature]:
    for point in entry_points(group=GROUP):
        yield from _load_feature(point.module, point.attr)


def _load_feature(module: str, attribute: str) -> Iterator[Feature]:
    try:
        loaded = import_module(module)
        feature = replace(getattr(loaded, attribute), package=loaded.__package__)
    except Exception as error:
        warn_of_plugin(f"The feature {module} cannot be loaded: {_describe_cause(error)}")
        return
    yield feature


def _describe_cause(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"

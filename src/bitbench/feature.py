"""The port: what a feature adds to bitbench, and how it is found.

A feature is a folder below `bitbench/features` whose package has a `FEATURE`, or any package with an entry point in the
group `bitbench.features` that names one. Both are treated alike. A feature is declared by names, "module:attribute"
(".module:…" within its own package), which are imported when they are first used: `bitbench --help` imports no code of
features.

This module needs nothing but the standard library, since it is imported in the environments of workers, too.
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
    """Where a part stands in the report of a study; parts of one place stand in the order of their names."""

    ANSWER = "answer"
    SPEED = "speed"
    MEMORY = "memory"
    QUALITY = "quality"
    CAUSES = "causes"  # why it is as fast as it is
    CONDITIONS = "conditions"  # machines, starts, method


class Panel(StrEnum):
    """Where a command stands in `bitbench --help`, in this order."""

    MEASURE = "Measure"
    DECIDE = "Decide"
    QUANTIZE = "Quantize"
    SET_UP = "Set up"
    SHARE = "Share"


@dataclass(frozen=True)
class Command:
    """A command of its own; a feature adds no options to another command."""

    name: str
    run: Target  # a function that typer can call
    help: str  # the line of `bitbench --help`; the same as the first line of its docstring
    panel: Panel | None = (
        None  # None: it is rare, and only named in the last line of `bitbench --help`
    )
    answer: Target | None = None  # the Record that it prints with --json
    resumes: bool = False  # the same command again continues it


@dataclass(frozen=True)
class ReportPart:
    """Numbers of its own from the records of any study, and what a report says of them."""

    name: str  # key of `StudySummary.parts`, and of the report's JSON
    place: ReportPlace
    type: Target  # the Record that `compute` returns
    compute: Target  # (StudyRecords) -> Record | None
    section: Target  # (Record, StudySummary) -> Section | None
    sentences: Target | None = (
        None  # (Record, StudySummary) -> Iterable[Words], for the answer at the top
    )
    lead: Target | None = (
        None  # (Record, StudySummary) -> Lead | None: the answer where no speed was measured
    )


@dataclass(frozen=True)
class Feature:
    name: str
    commands: tuple[Command, ...] = ()
    study_keys: Mapping[str, Target] = field(
        default_factory=dict
    )  # key of a study file: its StudySection
    report_parts: tuple[ReportPart, ...] = ()
    offers: Mapping[str, Mapping[str, Target]] = field(
        default_factory=dict
    )  # group: name: what ARCHITECTURE.md says
    package: str = ""  # set when it is found

    @property
    def is_built_in(self) -> bool:
        return self.package.startswith(f"{GROUP}.")


@dataclass(frozen=True)
class Offer:
    """A name that a feature gives, with the feature: to load it, or to say whose it is."""

    feature: Feature
    target: Target

    def load(self) -> Any:
        module, _, attribute = self.target.partition(":")
        return getattr(import_module(module, self.feature.package), attribute)


@cache
def features() -> Mapping[str, Feature]:
    """All that are installed, by name: built-in ones first. One that cannot be imported is left out with a warning."""
    found: dict[str, Feature] = {}
    for feature in (*_built_in(), *_installed()):
        found.setdefault(feature.name, feature)
    return found


def commands_of_features() -> dict[str, tuple[Command, Offer]]:
    """Of all features, by name."""
    return {
        command.name: (command, Offer(feature, command.run))
        for feature in features().values()
        for command in feature.commands
    }


def study_keys_of_features() -> dict[str, Offer]:
    """Keys of a study file that features read."""
    return {
        key: Offer(feature, target)
        for feature in features().values()
        for key, target in feature.study_keys.items()
    }


def report_parts() -> list[tuple[ReportPart, Feature]]:
    """In the order of a report."""
    found = [(part, feature) for feature in features().values() for part in feature.report_parts]
    return sorted(found, key=lambda pair: (list(ReportPlace).index(pair[0].place), pair[0].name))


def offered(group: str) -> dict[str, Offer]:
    """All of a group, such as "executors", by name."""
    return {
        name: Offer(feature, target)
        for feature in features().values()
        for name, target in feature.offers.get(group, {}).items()
    }


def loaded_from_features(group: str) -> dict[str, Any]:
    """What all names of a group lead to; what a third party's code raises is a warning."""
    found: dict[str, Any] = {}
    for name, offer in offered(group).items():
        with feature_errors_as_warnings(offer.feature):
            found[name] = offer.load()
    return found


@contextmanager
def feature_errors_as_warnings(feature: Feature) -> Iterator[None]:
    """Turn what a third party's code raises into a warning; what raises in a built-in feature is a bug of bitbench."""
    try:
        yield
    except Exception as error:
        if feature.is_built_in:
            raise
        warn_of_plugin(
            f"The feature {feature.name} ({feature.package}) is left out here: {_cause(error)}"
        )


def _built_in() -> Iterator[Feature]:
    """Every folder that exists: deleting one takes its feature away, and nothing has to be edited."""
    package = import_module(GROUP)
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda module: module.name):
        yield from _of(f"{GROUP}.{module.name}", "FEATURE")


def _installed() -> Iterator[Feature]:
    for point in entry_points(group=GROUP):
        yield from _of(point.module, point.attr)


def _of(module: str, attribute: str) -> Iterator[Feature]:
    try:
        loaded = import_module(module)
        feature = replace(getattr(loaded, attribute), package=loaded.__package__)
    except Exception as error:
        warn_of_plugin(f"The feature {module} cannot be loaded: {_cause(error)}")
        return
    yield feature


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"

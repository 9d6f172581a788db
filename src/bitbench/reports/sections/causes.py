"""What has no result, by its cause: configs that failed alike are named together."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from bitbench.analysis.results.summary import StudySummary
from bitbench.records.trial import NOT_THE_ENGINES, Failure
from bitbench.reports.document.model import Phrase
from bitbench.reports.document.words import joined, listing, names, say
from bitbench.reports.grouping import grouped
from bitbench.reports.labels import Labels
from bitbench.study.plan import Config, Point, Refusal

_NUMBER = re.compile(r"\d[\d.,]*")


@dataclass
class Affected:
    """Points that share a cause."""

    workloads: dict[Config, list[str]] = field(default_factory=dict)

    def add(self, point: Point) -> None:
        self.workloads.setdefault(point.config, []).append(point.workload)

    def configs_by_workloads(self) -> list[tuple[list[Config], list[str]]]:
        alike = grouped(self.workloads, lambda config: tuple(self.workloads[config]))
        return [(configs, list(workloads)) for workloads, configs in alike.items()]

    def in_words(self, labels: Labels) -> Phrase:
        """`a and b on x and y; c on x`"""
        groups = [
            say(listing(names(labels[config] for config in configs)), " on ", listing(names(workloads)))
            for configs, workloads in self.configs_by_workloads()
        ]
        return joined(groups, "; ")


@dataclass
class CauseOfFailure:
    failure: Failure
    affected: Affected = field(default_factory=Affected)
    ids: list[str] = field(default_factory=list)


def failures_by_cause(summary: StudySummary) -> list[CauseOfFailure]:
    causes: dict[tuple[str, str], CauseOfFailure] = {}
    for point in summary.points:
        for group in point.failures:
            failure = group.failure
            cause = causes.setdefault((failure.outcome.value, _kind(failure)), CauseOfFailure(failure))
            cause.affected.add(point.point)
            cause.ids.extend(group.ids)
    return list(causes.values())


def _kind(failure: Failure) -> str:
    """What the machine spoiled differs from point to point in its numbers, and is one cause all the same; the first is
    shown. Of an engine a number may be all that tells two causes apart, such as an exit code."""
    return _NUMBER.sub("#", failure.cause) if failure.outcome in NOT_THE_ENGINES else failure.cause


@dataclass
class ReasonToRefuse:
    reason: str
    was_tried: bool
    affected: Affected = field(default_factory=Affected)


def refusals_by_reason(refusals: Iterable[Refusal]) -> list[ReasonToRefuse]:
    reasons: dict[tuple[str, bool], ReasonToRefuse] = {}
    for refusal in refusals:
        key = (refusal.reason, refusal.was_tried)
        reasons.setdefault(key, ReasonToRefuse(*key)).affected.add(refusal.point)
    return list(reasons.values())

"""What has no result, and why, by its cause: trials that failed, and points refused before anything started."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from bitbench.analysis.results.summary import StudySummary
from bitbench.records.trial import NOT_THE_ENGINES, Failure
from bitbench.reports.document.model import Block, CodeBlock, Details, Phrase, Section
from bitbench.reports.document.tables import table, words_column
from bitbench.reports.document.text import MAX_NAME, plain
from bitbench.reports.document.words import bullets, joined, listing, names, paragraph, plural, say, small_print, strong
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


MAX_LOG_LINES = 12
MAX_IDS = 8
MAX_CAUSE = 200  # characters: a line or two of a terminal; what is cut off stands beside the log lines


def failures_section(summary: StudySummary) -> Section:
    """One bullet per cause; its trials and log lines are folded away behind it."""
    blocks: list[Block] = []
    labels = Labels.of(summary, MAX_NAME)
    for cause in failures_by_cause(summary):
        many = f" ({plural(len(cause.ids), 'trial')})"
        blocks += bullets(
            [_sentence(cause.failure.outcome.value, many, cause.affected.in_words(labels), cause.failure.cause)]
        )
        blocks.append(_evidence(cause))
    blocks += bullets(
        _sentence("not made", "", refused.affected.in_words(labels), refused.reason)
        for refused in refusals_by_reason(summary.refusals)
        if refused.was_tried
    )
    shown = tuple(blocks) or (small_print("Nothing failed."),)
    return Section(say("What failed, and why"), shown, in_terminal=bool(blocks))


def _sentence(outcome: str, many: str, affected: Phrase, cause: str) -> Phrase:
    return say(strong(outcome), many, ": ", affected, ": ", plain(cause, MAX_CAUSE))


def _evidence(cause: CauseOfFailure) -> Details:
    failure = cause.failure
    whole = f": {failure.cause}" if len(failure.cause) > MAX_CAUSE else ""
    log = [CodeBlock(failure.log_lines[-MAX_LOG_LINES:])] if failure.log_lines else []
    where = paragraph("In ", listing(names(cause.ids), most=MAX_IDS), whole, ":" if log else ".")
    return Details(f"Trials and log lines: {failure.outcome.value}", (where, *log))


def refusals_section(summary: StudySummary) -> Section | None:
    """Refusals known before any trial: a table by reason, so that what applies to many is read once."""
    alike = [
        (refused.reason, configs, workloads)
        for refused in refusals_by_reason(summary.refusals)
        if not refused.was_tried
        for configs, workloads in refused.affected.configs_by_workloads()
    ]
    labels = Labels.of(summary, MAX_NAME)
    reasons = table(
        alike,
        words_column("Reason", lambda row: row[0]),
        words_column("Configs", lambda row: listing(names(labels[config] for config in row[1]))),
        words_column("Workloads", lambda row: listing(names(row[2]))),
    )
    return Section(say("Refused up front"), (reasons,), in_terminal=True) if alike else None

"""A comparison of two studies, or of two configs: for a pull request, and for a terminal."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from bitbench.analysis.results.comparison import (
    CACHED_ON_ONE_SIDE,
    ChangeVerdict,
    ComparedPoint,
    Comparison,
    GateResult,
    Replicate,
)
from bitbench.analysis.results.estimate import Estimate, Verdict
from bitbench.reports.document.model import (
    Document,
    Mark,
    Name,
    Paragraph,
    Phrase,
    Quantity,
    Section,
    Unit,
)
from bitbench.reports.document.numbers import estimated, percent, quantity_unit, share, times
from bitbench.reports.document.words import (
    MAX_NAME,
    ColumnOf,
    Words,
    bullets,
    joined,
    listing,
    name_phrases,
    number_column,
    paragraph,
    ratio_column,
    say,
    strong,
    table,
    words_column,
)
from bitbench.reports.labels import Labels
from bitbench.reports.sections.failures import WITHOUT_CACHE
from bitbench.study.metrics import find_metric
from bitbench.util.units import UNKNOWN

MAX_NAMED = 4
WORST_FIRST = (Verdict.MISSED, Verdict.INCONCLUSIVE, Verdict.MET)


def comparison_document(comparison: Comparison) -> Document:
    """What the limits say closes the answer, so that it is the last line in a terminal."""
    limits = [Paragraph(_limits(comparison))] if comparison.gates or comparison.cached else []
    conditions = dict.fromkeys(gate.condition for gate in comparison.gates)
    found = [
        (metric, points)
        for metric in comparison.definitions
        if (points := _points_of(comparison, metric))
    ]
    labels = Labels((point.candidate.config for point in comparison.points), MAX_NAME)
    shared = [paragraph(labels.shared)] if labels.shared else []
    notes = bullets(_notes(comparison))
    return Document(
        say(Name(comparison.candidate), " against ", Name(comparison.baseline)),
        (
            *bullets(_verdicts(comparison, metric, labels) for metric in comparison.definitions),
            *shared,
            *limits,
        ),
        (
            *(_gate_section(comparison, condition, labels) for condition in conditions),
            *(_metric_section(comparison, metric, points, labels) for metric, points in found),
            *([Section(say("What to know"), notes, in_terminal=True)] if notes else []),
        ),
    )


def _points_of(comparison: Comparison, metric: str) -> list[ComparedPoint]:
    return [point for point in comparison.points if point.metric == metric]


def _verdicts(comparison: Comparison, metric: str, labels: Labels) -> Phrase:
    """`Output throughput against a: slower (x · one); undecided (y · one).`, or `undecided on all 16 points`"""
    points = _points_of(comparison, metric)
    said: list[Words] = []
    for verdict in ChangeVerdict:
        alike = [point.candidate for point in points if point.verdict is verdict]
        if len(alike) == len(points) > MAX_NAMED:
            said.append(f"{verdict.value} on all {len(alike)} points")
        elif alike:
            found = name_phrases(f"{labels[point.config]} · {point.workload}" for point in alike)
            said.append(say(f"{verdict.value} (", listing(found, most=MAX_NAMED), ")"))
    what = say(_title(comparison, metric), " against ", Name(comparison.baseline), ": ")
    return say(what, joined(said, "; ") or "no point has a result on both sides", ".")


def _title(comparison: Comparison, metric: str) -> str:
    name = comparison.definitions[metric].name
    return name[0].upper() + name[1:]


def _limits(comparison: Comparison) -> Phrase:
    verdicts = [gate.verdict for gate in comparison.gates]
    counts = [
        f"{verdicts.count(verdict)} {verdict.value}" for verdict in Verdict if verdict in verdicts
    ]
    if not counts:
        return strong(f"Inconclusive: {CACHED_ON_ONE_SIDE}; exit code {comparison.exit_code:d}.")
    return strong(f"Limits: {', '.join(counts)}; exit code {comparison.exit_code:d}.")


Compared = TypeVar("Compared", ComparedPoint, GateResult)


def _names(rows: Sequence[Compared], labels: Labels) -> Iterator[ColumnOf[Compared]]:
    """The columns before the figures; without that of the config where there is only one."""
    if len({row.candidate.config for row in rows}) > 1:
        yield words_column("Config", lambda row: Name(labels[row.candidate.config]))
    yield words_column("Workload", lambda row: Name(row.candidate.workload))


def _metric_section(
    comparison: Comparison, metric: str, points: Sequence[ComparedPoint], labels: Labels
) -> Section:
    definition = comparison.definitions[metric]
    figures = table(
        points,
        *_names(points, labels),
        number_column(
            "Before", quantity_unit(definition), lambda point: estimated(point.before, definition)
        ),
        number_column(
            "After", quantity_unit(definition), lambda point: estimated(point.after, definition)
        ),
        ratio_column(_ratio_title(comparison, points), lambda point: times(point.decisive)),
        words_column(
            "Starts",
            lambda point: f"{_starts(point.before)} / {_starts(point.after)}",
            shown_from=110,
        ),
        words_column("Verdict", lambda point: point.verdict.value),
    )
    return Section(say(_title(comparison, metric)), (figures,), in_terminal=True)


def _ratio_title(comparison: Comparison, points: Sequence[ComparedPoint]) -> str:
    """`Times better (95 %)`; corrected for several at once, where each may be tested at a level of its own."""
    levels = {point.corrected.confidence or 0.0 for point in points if point.corrected} or {
        comparison.confidence
    }
    return f"Times better ({percent(levels.pop()) if len(levels) == 1 else 'corrected'})"


def _starts(estimate: Estimate) -> str:
    return str(estimate.basis.starts) if estimate.basis else UNKNOWN


def _gate_section(comparison: Comparison, condition: str, labels: Labels) -> Section:
    """What failed first; below it, why the rest is open."""
    gates = [gate for gate in comparison.gates if gate.condition == condition]
    gates.sort(key=lambda gate: WORST_FIRST.index(gate.verdict))
    outcomes = table(
        gates,
        *_names(gates, labels),
        number_column(
            f"Change ({percent(_single(comparison))})", Unit.SHARE, _change, intervals_from=0
        ),
        words_column("Outcome", lambda gate: gate.verdict.value),
        mark=lambda gate: Mark.ALARM if gate.verdict is Verdict.MISSED else None,
    )
    return Section(
        say(f"Fails if {condition}"), (outcomes, *bullets(_doubts(gates))), in_terminal=True
    )


def _change(gate: GateResult) -> Quantity | None:
    """Of the metric itself, as the condition names it: less of a time is a gain."""
    if gate.ratio is None:
        return None
    low = None if gate.ratio.low is None else gate.ratio.low - 1
    high = None if gate.ratio.high is None else gate.ratio.high - 1
    return Quantity(gate.ratio.value - 1, Unit.SHARE, low, high, is_signed=True)


def _single(comparison: Comparison) -> float:
    """The confidence of one interval among all that decide."""
    return 1 - (1 - comparison.confidence) / len(comparison.gates)


def _doubts(gates: Sequence[GateResult]) -> Iterator[str]:
    unsure = [gate for gate in gates if gate.verdict is Verdict.INCONCLUSIVE]
    for reason in dict.fromkeys(gate.reason for gate in unsure):
        alike = [gate for gate in unsure if gate.reason == reason]
        yield f"Inconclusive ({len(alike)}): {reason}."


def _notes(comparison: Comparison) -> Iterator[Phrase]:
    if (asked := len(comparison.gates)) > 1:
        yield say(
            f"Corrected for {asked} comparisons ({percent(_single(comparison))} intervals each): the overall "
            f"false-alarm rate stays below {percent(1 - comparison.confidence)}."
        )
    if len([point for point in comparison.points if point.corrected]) > 1:
        yield say(
            "The intervals of ratios are corrected for all points that are compared (Holm), as the verdicts are: one "
            f"at {percent(comparison.confidence)} would be narrower."
        )
    for cached in comparison.cached:
        shares = (
            share(cached.before),
            " of the prompt tokens came from a prefix cache before, ",
            share(cached.after),
        )
        yield say(Name(cached.point.name), " is not compared: ", *shares, " after. ", WITHOUT_CACHE)
    for lost in comparison.unpaired:
        yield say(
            Name(lost.point.name),
            f" {lost.reason}{': it had one before' if lost.was_lost else ''}.",
        )
    for difference in comparison.differences:
        subject = say(" of ", Name(difference.subject)) if difference.subject else ()
        allowed = " (allowed)" if difference.is_allowed else ""
        yield say(
            f"Differs{allowed}: {difference.fact.value}",
            subject,
            f": {difference.before} before, {difference.after} after.",
        )
    if any(known.is_tail for metric in comparison.definitions if (known := find_metric(metric))):
        yield say(
            "A percentile is compared as the mean of the percentiles of single trials, of equal length on both sides."
        )
    if comparison.unknown_facts:
        yield say(
            "Missing on both sides, so not checked: ",
            listing([fact.value for fact in comparison.unknown_facts]),
            ".",
        )
    if any(gate.unit is Replicate.TRIALS for gate in comparison.gates):
        yield say(
            "bitbench did not start this server: its limits are judged on trials (--trials of bitbench load asks for "
            "more), and the intervals do not cover a restart."
        )
    elif any(
        not side.covers_starts
        for point in comparison.points
        for side in (point.before, point.after)
    ):
        yield say(
            "Some points have a single start, so no interval: a restart alone may make such a difference."
        )

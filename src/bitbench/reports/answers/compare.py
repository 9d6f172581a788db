"""The comparison of two studies, or of two configs, for a pull request and for a terminal."""

from collections import Counter
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
    Block,
    Document,
    Mark,
    Name,
    Paragraph,
    Phrase,
    Quantity,
    Section,
    Unit,
)
from bitbench.reports.document.numbers import (
    find_unit,
    format_percent,
    format_verdict_counts,
    make_ratio,
    make_share,
    to_quantity,
)
from bitbench.reports.document.words import (
    MAX_NAME,
    ColumnOf,
    Words,
    build_table,
    bullets,
    format_list,
    format_names,
    join_phrases,
    make_number_column,
    make_ratio_column,
    make_words_column,
    mark_if,
    paragraph,
    say,
    strong,
)
from bitbench.reports.labels import Labels
from bitbench.reports.sections.failures import WITHOUT_CACHE
from bitbench.study.metrics import find_metric
from bitbench.util.units import UNKNOWN

MAX_NAMED = 4
WORST_FIRST = (Verdict.MISSED, Verdict.INCONCLUSIVE, Verdict.MET)


def build_comparison(comparison: Comparison) -> Document:
    """Return the comparison. The outcome of its limits comes last, to be read in a terminal."""
    labels = Labels((point.candidate.config for point in comparison.points), MAX_NAME)
    verdicts = [_format_verdicts(comparison, metric, labels) for metric in comparison.definitions]
    answer: list[Block] = [*bullets(verdicts)]
    if labels.shared:
        answer.append(paragraph(labels.shared))
    if comparison.gates or comparison.cached:
        answer.append(Paragraph(_format_limits(comparison)))
    sections = []
    for condition in dict.fromkeys(gate.condition for gate in comparison.gates):
        sections.append(_build_gate_section(comparison, condition, labels))
    for metric in comparison.definitions:
        if points := _list_points(comparison, metric):
            sections.append(_build_metric_section(comparison, metric, points, labels))
    if notes := bullets(_iter_notes(comparison)):
        sections.append(Section(say("What to know"), notes, in_terminal=True))
    title = say(Name(comparison.candidate), " against ", Name(comparison.baseline))
    return Document(title, tuple(answer), tuple(sections))


def _list_points(comparison: Comparison, metric: str) -> list[ComparedPoint]:
    return [point for point in comparison.points if point.metric == metric]


def _format_verdicts(comparison: Comparison, metric: str, labels: Labels) -> Phrase:
    """Return `Output throughput against a: slower (x · one); undecided (y · one).`

    A verdict on many points that all share it gives only their number.
    """
    points = _list_points(comparison, metric)
    parts: list[Words] = []
    for verdict in ChangeVerdict:
        names = []
        for point in points:
            if point.verdict is verdict:
                candidate = point.candidate
                names.append(f"{labels[candidate.config]} · {candidate.workload}")
        if len(names) == len(points) > MAX_NAMED:
            parts.append(f"{verdict.value} on all {len(names)} points")
        elif names:
            parts.append(say(f"{verdict.value} (", format_names(names, most=MAX_NAMED), ")"))
    subject = say(_format_title(comparison, metric), " against ", Name(comparison.baseline), ": ")
    return say(subject, join_phrases(parts, "; ") or "no point has a result on both sides", ".")


def _format_title(comparison: Comparison, metric: str) -> str:
    name = comparison.definitions[metric].name
    return name[0].upper() + name[1:]


def _format_limits(comparison: Comparison) -> Phrase:
    """Return how many limits were met, and the exit code."""
    verdicts = [gate.verdict for gate in comparison.gates]
    if not verdicts:
        return strong(f"Inconclusive: {CACHED_ON_ONE_SIDE}; exit code {comparison.exit_code:d}.")
    counts = ", ".join(format_verdict_counts(verdicts))
    return strong(f"Limits: {counts}; exit code {comparison.exit_code:d}.")


Compared = TypeVar("Compared", ComparedPoint, GateResult)


def _iter_name_columns(rows: Sequence[Compared], labels: Labels) -> Iterator[ColumnOf[Compared]]:
    """Yield the columns of names. One config alone gets no column."""
    if len({row.candidate.config for row in rows}) > 1:
        yield make_words_column("Config", lambda row: Name(labels[row.candidate.config]))
    yield make_words_column("Workload", lambda row: Name(row.candidate.workload))


def _build_metric_section(
    comparison: Comparison, metric: str, points: Sequence[ComparedPoint], labels: Labels
) -> Section:
    definition = comparison.definitions[metric]
    unit = find_unit(definition)
    rows = build_table(
        points,
        *_iter_name_columns(points, labels),
        make_number_column("Before", unit, lambda point: to_quantity(point.before, definition)),
        make_number_column("After", unit, lambda point: to_quantity(point.after, definition)),
        make_ratio_column(
            _format_ratio_title(comparison, points), lambda point: make_ratio(point.decisive)
        ),
        make_words_column(
            "Starts",
            lambda point: f"{_count_starts(point.before)} / {_count_starts(point.after)}",
            shown_from=110,
        ),
        make_words_column("Verdict", lambda point: point.verdict.value),
    )
    return Section(say(_format_title(comparison, metric)), (rows,), in_terminal=True)


def _format_ratio_title(comparison: Comparison, points: Sequence[ComparedPoint]) -> str:
    """Return `Times better (95 %)`, or `Times better (corrected)` if the levels differ."""
    levels = {point.corrected.confidence or 0.0 for point in points if point.corrected}
    level = "corrected"
    if len(levels) < 2:
        level = format_percent(next(iter(levels), comparison.confidence))
    return f"Times better ({level})"


def _count_starts(estimate: Estimate) -> str:
    return str(estimate.basis.starts) if estimate.basis else UNKNOWN


def _build_gate_section(comparison: Comparison, condition: str, labels: Labels) -> Section:
    """Return the outcome on each point, the failed ones first, and why others are inconclusive."""
    gates = [gate for gate in comparison.gates if gate.condition == condition]
    gates.sort(key=lambda gate: WORST_FIRST.index(gate.verdict))
    outcomes = build_table(
        gates,
        *_iter_name_columns(gates, labels),
        make_number_column(
            f"Change ({format_percent(_compute_confidence(comparison))})",
            Unit.SHARE,
            _compute_change,
            intervals_from=0,
        ),
        make_words_column("Outcome", lambda gate: gate.verdict.value),
        mark=lambda gate: mark_if(gate.verdict is Verdict.MISSED, Mark.ALARM),
    )
    doubts = bullets(_iter_doubts(gates))
    return Section(say(f"Fails if {condition}"), (outcomes, *doubts), in_terminal=True)


def _compute_change(gate: GateResult) -> Quantity | None:
    """Return the relative change of the metric itself: a negative change of a time is a gain."""
    if gate.ratio is None:
        return None
    low = None if gate.ratio.low is None else gate.ratio.low - 1
    high = None if gate.ratio.high is None else gate.ratio.high - 1
    return Quantity(gate.ratio.value - 1, Unit.SHARE, low, high, is_signed=True)


def _compute_confidence(comparison: Comparison) -> float:
    """Return the confidence of each interval, corrected for the number of limits (Bonferroni)."""
    return 1 - (1 - comparison.confidence) / len(comparison.gates)


def _iter_doubts(gates: Sequence[GateResult]) -> Iterator[str]:
    """Yield why limits are inconclusive, once per reason."""
    reasons = Counter(gate.reason for gate in gates if gate.verdict is Verdict.INCONCLUSIVE)
    for reason, count in reasons.items():
        yield f"Inconclusive ({count}): {reason}."


def _iter_notes(comparison: Comparison) -> Iterator[Phrase]:
    """Yield what a reader must know about the intervals and the two sides."""
    yield from _iter_interval_notes(comparison)
    for cached in comparison.cached:
        yield say(
            Name(cached.point.name),
            " is not compared: ",
            make_share(cached.before),
            " of the prompt tokens came from a prefix cache before, ",
            make_share(cached.after),
            " after. ",
            WITHOUT_CACHE,
        )
    for unpaired in comparison.unpaired:
        before = ": it had one before" if unpaired.was_lost else ""
        yield say(Name(unpaired.point.name), f" {unpaired.reason}{before}.")
    for difference in comparison.differences:
        allowed = " (allowed)" if difference.is_allowed else ""
        subject = say(" of ", Name(difference.subject)) if difference.subject else ()
        values = f": {difference.before} before, {difference.after} after."
        yield say(f"Differs{allowed}: {difference.fact.value}", subject, values)
    metrics = map(find_metric, comparison.definitions)
    if any(metric is not None and metric.is_tail for metric in metrics):
        yield say(
            "A percentile is compared as the mean of the percentiles of single trials, of equal "
            "length on both sides."
        )
    if comparison.unknown_facts:
        facts = format_list([fact.value for fact in comparison.unknown_facts])
        yield say("Missing on both sides, so not checked: ", facts, ".")
    if any(gate.unit is Replicate.TRIALS for gate in comparison.gates):
        yield say(
            "bitbench did not start this server: its limits are judged on trials (--trials of "
            "bitbench load asks for more), and the intervals do not cover a restart."
        )
    elif not all(map(_has_several_starts, comparison.points)):
        yield say(
            "Some points have a single start, so no interval: a restart alone may make such a "
            "difference."
        )


def _iter_interval_notes(comparison: Comparison) -> Iterator[Phrase]:
    """Yield how intervals are corrected for multiple comparisons."""
    count = len(comparison.gates)
    if count > 1:
        yield say(
            f"Corrected for {count} comparisons "
            f"({format_percent(_compute_confidence(comparison))} intervals each): "
            "the overall false-alarm rate stays below "
            f"{format_percent(1 - comparison.confidence)}."
        )
    if sum(point.corrected is not None for point in comparison.points) > 1:
        yield say(
            "The intervals of ratios are corrected for all points that are compared (Holm), as the "
            f"verdicts are: one at {format_percent(comparison.confidence)} would be narrower."
        )


def _has_several_starts(point: ComparedPoint) -> bool:
    return point.before.covers_starts and point.after.covers_starts

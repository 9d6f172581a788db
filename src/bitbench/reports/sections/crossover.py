"""Where a config stops being faster than the baseline."""

from collections.abc import Sequence
from math import floor

from bitbench.analysis.results.crossover import Crossing, Crossover, CrossoverAxis, CrossoverPoint, CrossoverSide
from bitbench.analysis.results.summary import StudySummary
from bitbench.reports.document.model import Block, Heading, Link, Name, Quantity, Section, Table, Unit, plain_text
from bitbench.reports.document.numbers import percent, shown
from bitbench.reports.document.tables import ColumnOf, number_column, table, words_column
from bitbench.reports.document.text import MAX_NAME
from bitbench.reports.document.words import listing, say, small_print
from bitbench.reports.grouping import grouped
from bitbench.reports.labels import Labels
from bitbench.reports.quantities import times
from bitbench.study.prompts import show_length
from bitbench.study.workload import Workload

UNITS = {CrossoverAxis.CONCURRENCY: "requests at once", CrossoverAxis.INPUT_TOKENS: "tokens of input"}
MOST_SURE = 0.999  # the few starts of a study cannot say more
SENTENCE_WIDTH, RATIO_WIDTH = 70, 20  # characters of a terminal: a name with its verdict, and each ratio beside them


def crossover_section(summary: StudySummary) -> Section | None:
    """None where no two workloads differ in concurrency, or input length, alone."""
    if not summary.crossovers:
        return None
    blocks: list[Block] = [
        small_print(
            f"By {summary.definitions[summary.primary_metric].name}, along workloads that differ in nothing else. A "
            "ratio above 1 is faster than the baseline. How the ratio bends between two points is unknown, so a "
            "crossing is known only as well as the points around it show; a workload between them narrows it (",
            Link("how", "how-the-figures-are-made"),
            ").",
        )
    ]
    labels = Labels.of(summary, MAX_NAME)

    def series(crossover: Crossover) -> str:
        return series_title(crossover.axis, summary.study.workload(crossover.points[0].workload))

    for title, group in grouped(summary.crossovers, series).items():
        blocks += [Heading(say(title)), _table(group, labels)]
    return Section(say("Where it stops being faster"), tuple(blocks), in_terminal=True)


def _table(group: Sequence[Crossover], labels: Labels) -> Table:
    """A terminal that has no room for the ratios shows the verdicts alone."""
    places = [point.at for point in max((crossover.points for crossover in group), key=len)]
    wide = SENTENCE_WIDTH + RATIO_WIDTH * len(places)

    def ratio(place: int) -> ColumnOf[Crossover]:
        def at_place(crossover: Crossover) -> Quantity | None:
            points = (times(point.speed) for point in crossover.points if point.at == place)
            return next(points, None)

        return number_column(f"{place:,}", Unit.RATIO, at_place, shown_from=wide, intervals_from=0)

    return table(
        group,
        words_column("Config", lambda crossover: Name(labels[crossover.config])),
        *map(ratio, places),
        words_column("Crossing", verdict),
    )


def series_title(axis: CrossoverAxis, workload: Workload) -> str:
    """What is the same in all workloads of a series."""
    out = show_length(workload.output_tokens)
    if axis is CrossoverAxis.CONCURRENCY:
        return f"Along concurrency, {show_length(workload.input_tokens)} tokens in and {out} out"
    return f"Along input length, concurrency {workload.concurrency} and {out} tokens out"


def verdict(crossover: Crossover) -> str:
    """In a few words: where it changes sides, or that it does not in the range measured."""
    if crossover.crossings:
        return "; ".join(crossing(found, crossover) for found in crossover.crossings)
    side = "faster" if crossover.points[0].speed.value > 1 else "slower"
    reached = f"{crossover.points[0].at:,} to {crossover.points[-1].at:,}"
    gaps = [stretch for stretch in crossover.stretches if stretch.standing is CrossoverSide.UNSURE]
    if gaps and {_side(point) for point in crossover.points} == {side}:
        return f"none seen: significantly {side} at every point from {reached}, inconclusive between them"
    if len(gaps) == len(crossover.stretches):
        alone = [f"{_side(point)} at {point.at:,}" for point in crossover.points if _side(point)]
        but = f", but for single points: {_listed(alone)}" if alone else ""
        return f"inconclusive: no significant difference from {reached}{but}"
    if crossover.none_confidence is None:
        return f"inconclusive: it changes sides within its error ({reached})"
    if not gaps:
        return (
            f"none in the range measured: {side} from {reached} ({_confidence(crossover.none_confidence)} confidence)"
        )
    unsure = [f"{point.at:,}" for point in crossover.points if not _side(point)]
    return f"none seen: {side} at every point from {reached}, but not significantly at {_listed(unsure)}"


def _side(point: CrossoverPoint) -> str:
    """Empty where the point's own interval does not tell."""
    if not point.speed.excludes(1):
        return ""
    return "faster" if point.speed.is_above(1) else "slower"


def crossing(found: Crossing, of: Crossover) -> str:
    """`faster up to about 23 [20, 27] requests at once, then slower; measured at 16 and 32`. An interval as wide as the
    gap between the two points says no more than that it is somewhere between them."""
    side, unit = "slower" if found.becomes is CrossoverSide.FASTER else "faster", UNITS[of.axis]
    about = f"about {shown(Quantity(found.at, unit, found.low, found.high, digits=2))}"
    points = f"measured at {found.after:,} and {found.before:,}"
    after = found.becomes.value
    if found.low <= found.after and found.high >= found.before:
        where = f"{side} at {found.after:,} and {after} at {found.before:,}"
        if not found.is_sure:
            return f"inconclusive: {where}, {_how_sure(found, of)}"
        return f"{where}; it crosses in between, at about {shown(Quantity(found.at, unit, digits=2))}"
    if not found.is_sure:
        return f"perhaps at {about}: {side} before, {after} after, {_how_sure(found, of)}; {points}"
    return f"{side} up to {about}, then {after}; {points}"


def _how_sure(found: Crossing, of: Crossover) -> str:
    """Of the points on either side: one may be significant where the other is not."""
    around = [point for point in of.points if point.at in (found.after, found.before)]
    sure = [f"{point.at:,}" for point in around if _side(point)]
    return f"significantly only at {_listed(sure)}" if sure else "neither significantly"


def _listed(texts: Sequence[str]) -> str:
    return plain_text(listing(texts))


def _confidence(confidence: float) -> str:
    """Rounded down: 99.97 % is not certain."""
    return percent(floor(1000 * min(confidence, MOST_SURE)) / 1000)

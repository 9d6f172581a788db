"""How each figure is made, and how to make them again."""

from bitbench.core.found.summary import StudySummary
from bitbench.core.recorded.lock import Lock
from bitbench.ground.units import show_duration
from bitbench.report.document.model import Bullets, CodeBlock, Name, Phrase, Section, Table
from bitbench.report.document.numbers import percent
from bitbench.report.document.tables import table, words_column
from bitbench.report.document.words import paragraph, say, strong
from bitbench.report.sections import memory
from bitbench.report.sections.workloads import OCCASIONAL_METRICS


def method_section(summary: StudySummary) -> Section:
    return Section(say("How the figures are made"), (_definitions(summary), Bullets(_methods(summary))))


def _definitions(summary: StudySummary) -> Table:
    used = {metric for cell in summary.cells for metric in cell.metrics}
    return table(
        [one for metric, one in summary.definitions.items() if metric not in OCCASIONAL_METRICS or metric in used],
        words_column("Figure", lambda one: one.label),
        words_column("Name", lambda one: one.name),
        words_column("Unit", lambda one: one.unit),
        words_column("Better", lambda one: "more" if one.higher_is_better else "less"),
        words_column("Definition for one trial", lambda one: one.definition),
    )


def _methods(summary: StudySummary) -> tuple[Phrase, ...]:
    confidence = percent(summary.study.measure.confidence)
    headline = summary.definitions[summary.headline].name
    meanings = {
        "mean [low, high]": f" is the mean of instance means with its {confidence} confidence interval. An instance is "
        "one start of the engine; trials of one instance are not independent, so the width comes from the spread of "
        "instance means (Student's t; never less than the spread within instances supports) and its two sides from a "
        "bootstrap over instances, then trials.",
        "vs. baseline": " is the ratio of the means, with an interval made the same way (Welch).",
        "Rank": f" is by {headline}. Two contenders get different ranks only where their difference is significant at "
        f"{confidence} after a correction for all pairs of the workload (Holm) and for stopping early; the others are "
        "tied, and a rank is the range of places that this leaves. The correction asks for more than a single interval "
        "does, so a ratio whose interval just excludes 1 may still be a tie.",
        "Crossing": ": the ratios and the ends of their intervals are joined by straight lines (logarithms of both "
        "axes), and moved apart to the lines that come in from the points before and after. Where 1 lies between them "
        f"is the interval of the crossing, at {confidence}.",
        "Outliers": " are trials further than 3.5 robust standard deviations (MAD) and 10 % from the median. They are "
        "flagged and still included in the means.",
    }
    counted = say("Only trials with outcome ", Name("ok"), " count. A figure that is not defined is –.")
    return (*(say(strong(term), meaning) for term, meaning in meanings.items()), memory.DEFINITION, counted)


def reproduce_section(summary: StudySummary, lock: Lock) -> Section | None:
    """None for an import, which bitbench did not run."""
    if summary.imported_from:
        return None
    study, measure = summary.study, summary.study.measure
    budget = f", budget {show_duration(measure.budget)}" if measure.budget is not None else ""
    commands = (
        f"pip install bitbench{f'=={lock.bitbench}' if lock.bitbench else ''}",
        f"bitbench run study.yaml --into {study.name}-again",
    )
    amount = (
        f" made this page. Seed {study.seed}; {_range(measure.instances.min, measure.instances.max)} instances, "
        f"{_range(measure.trials.min, measure.trials.max)} trials each{budget}."
    )
    files = say(Name("study.yaml"), " and ", Name("lock.json"), " lie beside the records from which ")
    return Section(say("How to repeat it"), (CodeBlock(commands), paragraph(files, Name("bitbench report"), amount)))


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"

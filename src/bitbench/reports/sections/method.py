"""How exact the figures are, how each is made, and how to make them again."""

from collections.abc import Iterator
from math import exp

from bitbench.analysis.results.summary import Precision, StudySummary
from bitbench.records.lock import Lock
from bitbench.reports.document.model import Bullets, CodeBlock, Name, Phrase, Quantity, Section, Table, Unit
from bitbench.reports.document.numbers import percent
from bitbench.reports.document.tables import table, words_column
from bitbench.reports.document.text import MAX_NAME
from bitbench.reports.document.words import paragraph, plural, say, strong
from bitbench.reports.labels import Labels
from bitbench.reports.quantities import times
from bitbench.reports.sections import memory
from bitbench.reports.sections.ranked import entry_of
from bitbench.reports.sections.workloads import OCCASIONAL_METRICS
from bitbench.util.units import show_duration


def precision_section(summary: StudySummary) -> Section | None:
    """None where no two configs met in two blocks."""
    found = summary.precision
    if found is None or summary.imported_from:
        return None
    return Section(say("How exact it is"), (Bullets((*_sentences(found), *_confirmed(summary))),))


def _sentences(found: Precision) -> list[Phrase]:
    least = "" if found.fewest_blocks in (None, found.blocks) else f"{found.fewest_blocks} to "
    said = [say(f"{least}{plural(found.blocks, 'start')} of each config beside the baseline; ratios to it are known "
                "to about ± ", _relative(found.half_width), " (median).")]  # fmt: skip
    if found.start_sd is not None and found.trial_sd is not None:
        noise = say("A config varies by ", _share(found.start_sd), " from start to start and by ")
        said.append(say(noise, _share(found.trial_sd), " from trial to trial (standard deviations)."))
    if found.probe_share is not None:
        said.append(say("The machine's own speed, read around each trial, explains ", _share(found.probe_share),
                        " of the variation within starts."))  # fmt: skip
    if found.next_block_s is not None and found.next_half_width is not None:
        cost = f"One more block would take about {show_duration(found.next_block_s)} and narrow that to about ± "
        said.append(say(cost, _relative(found.next_half_width), "."))
    return said


def _confirmed(summary: StudySummary) -> Iterator[Phrase]:
    """Beside the ratio that the choice was made by, which is the largest of several and so rather too large."""
    labels = Labels.of(summary, MAX_NAME)
    for ranking in summary.rankings:
        if (found := ranking.confirmed) is None or (entry := entry_of(ranking, found.config)) is None:
            continue
        where = say(" on ", Name(ranking.workload), ": ")
        yield say("Confirmed with fresh starts, ", Name(labels[found.config]), where, times(found.ratio),
                  " the baseline; the blocks that chose it gave ", times(entry.ratio_to_baseline), ".")  # fmt: skip


def _share(value: float) -> Quantity:
    return Quantity(value, Unit.SHARE)


def _relative(half_width: float | None) -> Quantity:
    """From the scale of logarithms."""
    return Quantity(None if half_width is None else exp(half_width) - 1, Unit.SHARE)


def method_section(summary: StudySummary) -> Section:
    return Section(say("How the figures are made"), (_definitions(summary), Bullets(_methods(summary))))


def _definitions(summary: StudySummary) -> Table:
    used = {metric for point in summary.points for metric in point.metrics}
    return table(
        [
            definition
            for metric, definition in summary.definitions.items()
            if metric not in OCCASIONAL_METRICS or metric in used
        ],
        words_column("Figure", lambda definition: definition.label),
        words_column("Name", lambda definition: definition.name),
        words_column("Unit", lambda definition: definition.unit),
        words_column("Better", lambda definition: "more" if definition.higher_is_better else "less"),
        words_column("Definition for one trial", lambda definition: definition.definition),
    )


def _methods(summary: StudySummary) -> tuple[Phrase, ...]:
    confidence = percent(summary.study.measure.confidence)
    primary_metric = summary.definitions[summary.primary_metric].name
    meanings = {
        "mean [low, high]": f" is the mean of the means of starts with its {confidence} confidence interval. "
        "A start is one of the engine; its trials are not independent, so the width comes from the spread of "
        "these means (Student's t; never less than the spread within starts supports) and its two sides from a "
        "bootstrap over starts, then trials.",
        "p99": " is that of the requests of all trials together. Its interval takes starts as clusters (trials, of a "
        "server that was already running), and is open, [low, ∞), where the requests are too few to bound it. A "
        "percentile has its name from ten requests beyond it on (p99: 1,000); with fewer, the slowest is shown. "
        "The requests of a batch share one fate and count as one. Where requests were not kept it is the mean of the "
        "percentiles of single trials (per trial).",
        "vs. baseline": " is the geometric mean of the ratios within blocks: a block holds one fresh start of each "
        "config, so what slows the whole machine cancels. Other configs and workloads lend degrees of freedom. "
        "With a single start it is the ratio of the means (Welch).",
        "Rank": f" is by {primary_metric}. Two configs get different ranks only where their difference is significant "
        f"at {confidence} after a correction for all pairs of the workload (Holm) and for looking more than once; "
        "the others are tied, and a rank is the range of places that this leaves. Against the baseline alone, and for "
        "the question which may be the best, fewer comparisons are made at once, so those answers can be sharper.",
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
        f" made this page. Seed {study.seed}; {_range(measure.starts.min, measure.starts.max)} starts, "
        f"{_range(measure.trials.min, measure.trials.max)} trials each{budget}."
    )
    files = say(Name("study.yaml"), " and ", Name("lock.json"), " lie beside the records from which ")
    return Section(say("How to repeat it"), (CodeBlock(commands), paragraph(files, Name("bitbench report"), amount)))


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"

"""The answer in sentences, before any table."""

from collections.abc import Callable
from itertools import groupby

from bitbench.core.cell import Contender
from bitbench.core.found.summary import CellSummary, MetricDefinition, Ranking, RankingEntry, StopReason, StudySummary
from bitbench.report.document.numbers import mean_and_interval, scale_for, times
from bitbench.report.document.text import MAX_NAME, counted, listing
from bitbench.report.labels import Labels
from bitbench.report.sections.headline import MAX_NAMED, Quote, estimate_of

Name = Callable[[Contender], str]


def verdicts(summary: StudySummary, quote: Quote) -> list[str]:
    """One sentence per workload."""
    labels = Labels.of(summary, MAX_NAME)

    def name(contender: Contender) -> str:
        return quote(labels[contender])

    return [f"{quote(ranking.workload)}: {_verdict(summary, ranking, name)}" for ranking in summary.rankings]


def remarks(summary: StudySummary, quote: Quote) -> list[str]:
    """What is missing, and what to be careful with."""
    return [*_missing(summary, quote), *_caveats(summary)]


def _verdict(summary: StudySummary, ranking: Ranking, name: Name) -> str:
    if not ranking.entries:
        return "no contender has a result."
    definition = summary.definitions[ranking.metric]
    top = [entry for entry in ranking.entries if entry.rank_low == 1]
    best, *others = top
    if len(ranking.entries) == 1:
        return f"only {name(best.contender)} has a result: {definition.name} {_figure(summary, ranking, best)}."
    if others:
        return _tie(summary, ranking, top, definition, name)
    extreme = _extreme(definition)
    return (
        f"{name(best.contender)} has the {extreme} {definition.name}: "
        f"{_figure(summary, ranking, best)}. {_against_baseline(ranking, best, 'That', name)}"
        f"{_ties_behind(ranking, name)}"
    )


def _ties_behind(ranking: Ranking, name: Name) -> str:
    """Groups that share one range of ranks; ranges that only overlap are left to the table."""
    groups = [list(same) for _, same in groupby(ranking.entries, lambda entry: (entry.rank_low, entry.rank_high))]
    ties = [listing([name(entry.contender) for entry in group]) for group in groups if len(group) > 1]
    return "".join(f" {names} are a tie." for names in ties)


def _tie(
    summary: StudySummary, ranking: Ranking, top: list[RankingEntry], definition: MetricDefinition, name: Name
) -> str:
    """With the figures of each: a tie may be of equals, or with one of which too little is known."""
    named = [f"{name(entry.contender)} {_figure(summary, ranking, entry)}" for entry in top[:MAX_NAMED]]
    if len(top) > MAX_NAMED:
        named.append(f"{len(top) - MAX_NAMED} more")
    if not any(estimate_of(summary, ranking, entry).interval for entry in top):
        return f"not ranked, as one run says nothing about its spread; {_extreme(definition)} first: {listing(named)}."
    if len(top) == len(ranking.entries):
        return f"a tie, nobody can be told apart by {definition.name}: {listing(named)}."
    return (
        f"a tie for the {_extreme(definition)} {definition.name}: {listing(named)}. "
        f"{_against_baseline(ranking, top[0], name(top[0].contender), name)}"
    )


def _extreme(definition: MetricDefinition) -> str:
    return "highest" if definition.higher_is_better else "lowest"


def _against_baseline(ranking: Ranking, best: RankingEntry, subject: str, name: Name) -> str:
    if ranking.baseline is None:
        return "The baseline has no result here."
    if best.ratio_to_baseline is not None:
        return f"{subject} is {times(best.ratio_to_baseline)} the baseline {name(ranking.baseline)}."
    follower = next(entry for entry in ranking.entries if entry is not best)
    return f"{subject} is the baseline; {name(follower.contender)} follows at {times(follower.ratio_to_baseline)}."


def _figure(summary: StudySummary, ranking: Ranking, entry: RankingEntry) -> str:
    estimate = estimate_of(summary, ranking, entry)
    scale = scale_for(summary.definitions[ranking.metric], [estimate.mean])
    return f"{mean_and_interval(estimate, scale)} {scale.unit}"


def has_result(summary: StudySummary, cell: CellSummary) -> bool:
    return summary.headline in cell.metrics


def outcomes_of(cell: CellSummary) -> str:
    """`crashed (2), oom`: what a cell has instead of figures."""
    return counted(group.failure.outcome.value for group in cell.failures for _ in group.ids)


def _missing(summary: StudySummary, quote: Quote) -> list[str]:
    sentences = []
    if failed := _failed(summary, quote):
        sentences.append(f"Failed: {'; '.join(failed)}.")
    if not_made := [refusal.cell.contender for refusal in summary.refusals if refusal.was_tried]:
        names = listing(list(dict.fromkeys(quote(contender.variant) for contender in not_made)))
        sentences.append(f"Could not be made: {names}; run the study again to try once more.")
    if refused := [refusal.cell for refusal in summary.refusals if not refusal.was_tried]:
        named = list(dict.fromkeys(quote(cell.contender.name) for cell in refused))
        names = listing(named) if len(named) <= MAX_NAMED else f"{len(named)} contenders"
        count = len(refused)
        whole = [one.workload for one in summary.rankings if not summary.cells_of(one.workload)]
        if whole and {cell.workload for cell in refused} <= set(whole):
            names = f"every contender at {listing([quote(workload) for workload in whole])}"
        sentences.append(f"Refused up front: {count} {'cell' if count == 1 else 'cells'} of {names}.")
    flagged = {outlier.trial_id for cell in summary.cells for outlier in cell.outliers}
    if flagged:
        verb = "trial is" if len(flagged) == 1 else "trials are"
        sentences.append(f"Outliers: {len(flagged)} {verb} flagged, and counted.")
    return sentences


def _failed(summary: StudySummary, quote: Quote) -> list[str]:
    """`a and b on every workload (unsupported)`: who failed alike is named together."""
    labels = Labels.of(summary, MAX_NAME)
    without: dict[Contender, list[CellSummary]] = {}
    for cell in summary.cells:
        if cell.failures and not has_result(summary, cell):
            without.setdefault(cell.cell.contender, []).append(cell)
    alike: dict[str, list[str]] = {}
    for contender, cells in without.items():
        own = [cell for cell in summary.cells if cell.cell.contender == contender]
        where = listing([quote(cell.cell.workload) for cell in cells])
        if len(cells) == len(own) > 2:
            where = f"all {len(own)} workloads they were tried on"
        outcomes = ", ".join(sorted({group.failure.outcome.value for cell in cells for group in cell.failures}))
        alike.setdefault(f"on {where} ({outcomes})", []).append(quote(labels[contender]))
    return [f"{listing(names)} {where}" for where, names in alike.items()]


def _caveats(summary: StudySummary) -> list[str]:
    sentences = []
    unfinished = sum(cell.stop_reason is StopReason.UNFINISHED for cell in summary.cells)
    if unfinished:
        sentences.append(
            f"Not finished: {unfinished} of {len(summary.cells)} cells lack trials; run the study again to go on."
        )
    estimates = [cell.metrics[summary.headline] for cell in summary.cells if has_result(summary, cell)]
    if any(not estimate.covers_starts for estimate in estimates):
        remedy = "" if summary.imported_from else " Set `instances` to 3 or more."
        sentences.append(
            "Caution: some cells have one instance only; their intervals say nothing about the next start, "
            f"and a difference may be one of starts.{remedy}"
        )
    return sentences

"""The answer in sentences, before any table."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby

from bitbench.core.cell import Cell, Contender, Refusal
from bitbench.core.summary import CellSummary, MetricDefinition, Ranking, RankingEntry, StopReason, StudySummary
from bitbench.core.trial import Failure
from bitbench.report.figures import mean_and_interval, scale_for, times
from bitbench.report.text import counted, listing

MAX_NAMED = 4  # of a tie, in its sentence

Quote = Callable[[str], str]  # how a name is written in the format at hand


def answer(summary: StudySummary, quote: Quote) -> list[str]:
    """One sentence per workload, then what is missing from them."""
    sentences = [f"{quote(ranking.workload)}: {_verdict(summary, ranking, quote)}" for ranking in summary.rankings]
    return [*sentences, *_missing(summary, quote), *_caveats(summary)]


def _verdict(summary: StudySummary, ranking: Ranking, quote: Quote) -> str:
    if not ranking.entries:
        return "no contender has a result."
    definition = summary.definitions[ranking.metric]
    top = [entry for entry in ranking.entries if entry.rank_low == 1]
    best, *others = top
    if len(ranking.entries) == 1:
        return f"only {quote(best.contender.name)} has a result: {definition.name} {_figure(summary, ranking, best)}."
    if others:
        return _tie(summary, ranking, top, definition, quote)
    extreme = _extreme(definition)
    return (
        f"{quote(best.contender.name)} has the {extreme} {definition.name}: "
        f"{_figure(summary, ranking, best)}. {_against_baseline(ranking, best, 'That', quote)}"
        f"{_ties_behind(ranking, quote)}"
    )


def _ties_behind(ranking: Ranking, quote: Quote) -> str:
    """Groups that share one range of ranks; ranges that only overlap are left to the table."""
    groups = [list(same) for _, same in groupby(ranking.entries, lambda entry: (entry.rank_low, entry.rank_high))]
    ties = [listing([quote(entry.contender.name) for entry in group]) for group in groups if len(group) > 1]
    return "".join(f" {names} are a tie." for names in ties)


def _tie(
    summary: StudySummary, ranking: Ranking, top: list[RankingEntry], definition: MetricDefinition, quote: Quote
) -> str:
    """With the figures of each: a tie may be of equals, or with one of which too little is known."""
    named = [f"{quote(entry.contender.name)} {_figure(summary, ranking, entry)}" for entry in top[:MAX_NAMED]]
    if len(top) > MAX_NAMED:
        named.append(f"{len(top) - MAX_NAMED} more")
    if len(top) == len(ranking.entries):
        return f"a tie, nobody can be told apart by {definition.name}: {listing(named)}."
    return (
        f"a tie for the {_extreme(definition)} {definition.name}: {listing(named)}. "
        f"{_against_baseline(ranking, top[0], quote(top[0].contender.name), quote)}"
    )


def _extreme(definition: MetricDefinition) -> str:
    return "highest" if definition.higher_is_better else "lowest"


def _against_baseline(ranking: Ranking, best: RankingEntry, subject: str, quote: Quote) -> str:
    if ranking.baseline is None:
        return "The baseline has no result here."
    if best.ratio_to_baseline is not None:
        return f"{subject} is {times(best.ratio_to_baseline)} the baseline {quote(ranking.baseline.name)}."
    follower = next(entry for entry in ranking.entries if entry is not best)
    return (
        f"{subject} is the baseline; {quote(follower.contender.name)} follows at {times(follower.ratio_to_baseline)}."
    )


def _figure(summary: StudySummary, ranking: Ranking, entry: RankingEntry) -> str:
    cell = Cell(contender=entry.contender, workload=ranking.workload)
    estimate = next(one for one in summary.cells if one.cell == cell).metrics[ranking.metric]
    scale = scale_for(summary.definitions[ranking.metric], [estimate.mean])
    return f"{mean_and_interval(estimate, scale)} {scale.unit}"


def has_result(summary: StudySummary, cell: CellSummary) -> bool:
    return summary.headline in cell.metrics


def outcomes_of(cell: CellSummary) -> str:
    """`crashed (2), oom`: what a cell has instead of figures."""
    return counted(group.failure.outcome.value for group in cell.failures for _ in group.ids)


@dataclass
class CauseOfFailure:
    """One cause of one contender, over all workloads."""

    contender: Contender
    failure: Failure
    workloads: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)


def failures_by_cause(summary: StudySummary) -> list[CauseOfFailure]:
    causes: dict[tuple[Contender, str, str], CauseOfFailure] = {}
    for cell in summary.cells:
        for group in cell.failures:
            contender, failure = cell.cell.contender, group.failure
            key = (contender, failure.outcome.value, failure.cause)
            one = causes.setdefault(key, CauseOfFailure(contender, failure))
            one.workloads.append(cell.cell.workload)
            one.ids.extend(group.ids)
    return list(causes.values())


@dataclass
class RefusedContender:
    """One reason of one contender, over all workloads."""

    contender: Contender
    reason: str
    was_tried: bool
    workloads: list[str] = field(default_factory=list)

    @property
    def word(self) -> str:
        return "not made" if self.was_tried else "refused"


def refusals_by_reason(refusals: Iterable[Refusal]) -> list[RefusedContender]:
    reasons: dict[tuple[Contender, str], RefusedContender] = {}
    for refusal in refusals:
        contender, reason = refusal.cell.contender, refusal.reason
        one = reasons.setdefault((contender, reason), RefusedContender(contender, reason, refusal.was_tried))
        one.workloads.append(refusal.cell.workload)
    return list(reasons.values())


def _missing(summary: StudySummary, quote: Quote) -> list[str]:
    sentences = []
    without: dict[str, list[CellSummary]] = {}
    for cell in summary.cells:
        if cell.failures and not has_result(summary, cell):
            without.setdefault(cell.cell.contender.name, []).append(cell)
    if without:
        parts = [
            f"{quote(name)} on {listing([quote(cell.cell.workload) for cell in cells])} "
            f"({', '.join(sorted({group.failure.outcome.value for cell in cells for group in cell.failures}))})"
            for name, cells in without.items()
        ]
        sentences.append(f"Failed: {'; '.join(parts)}.")
    if not_made := [refusal.cell.contender for refusal in summary.refusals if refusal.was_tried]:
        names = listing(list(dict.fromkeys(quote(contender.variant) for contender in not_made)))
        sentences.append(f"Could not be made: {names}; run the study again to try once more.")
    if refused := [refusal.cell.contender for refusal in summary.refusals if not refusal.was_tried]:
        named = list(dict.fromkeys(quote(contender.name) for contender in refused))
        names = listing(named) if len(named) <= MAX_NAMED else f"{len(named)} contenders"
        count = len(refused)
        sentences.append(f"Refused up front: {count} {'cell' if count == 1 else 'cells'} of {names}.")
    flagged = {outlier.trial_id for cell in summary.cells for outlier in cell.outliers}
    if flagged:
        verb = "trial is" if len(flagged) == 1 else "trials are"
        sentences.append(f"Outliers: {len(flagged)} {verb} flagged, and counted.")
    return sentences


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

"""The answer in sentences, before any table: each workload's verdict, what is missing, what to be careful with."""

from itertools import groupby

from bitbench.core.cell import Contender
from bitbench.core.found.summary import CellSummary, MetricDefinition, Ranking, RankingEntry, StopReason, StudySummary
from bitbench.report.document.model import Name, Phrase, Quantity
from bitbench.report.document.text import MAX_NAME
from bitbench.report.document.words import Words, joined, listing, names, plural, say
from bitbench.report.labels import Labels
from bitbench.report.quantities import estimated
from bitbench.report.sections.lead import MAX_NAMED
from bitbench.report.sections.ranked import estimate_of, has_result, ratio_to_baseline


def verdicts(summary: StudySummary) -> list[Phrase]:
    """One sentence per workload."""
    labels = Labels.of(summary, MAX_NAME)
    return [say(Name(one.workload), ": ", _verdict(summary, one, labels)) for one in summary.rankings]


def remarks(summary: StudySummary) -> list[Phrase]:
    """What is missing, and what to be careful with."""
    return [*_missing(summary), *_caveats(summary)]


def _verdict(summary: StudySummary, ranking: Ranking, labels: Labels) -> Phrase:
    if not ranking.entries:
        return say("no contender has a result.")
    definition = summary.definitions[ranking.metric]
    top = [entry for entry in ranking.entries if entry.rank_low == 1]
    best = Name(labels[top[0].contender])
    if len(ranking.entries) == 1:
        return say("only ", best, f" has a result: {definition.name} ", _figure(summary, ranking, top[0]), ".")
    if len(top) > 1:
        return _tie(summary, ranking, top, labels)
    return say(
        best,
        f" has the {_extreme(definition)} {definition.name}: ",
        _figure(summary, ranking, top[0]),
        ". ",
        _against_baseline(ranking, top[0], labels),
        *_ties_behind(ranking, labels),
    )


def _ties_behind(ranking: Ranking, labels: Labels) -> list[Words]:
    """Groups that share one range of ranks; ranges that only overlap are left to the table."""
    groups = [list(same) for _, same in groupby(ranking.entries, lambda entry: (entry.rank_low, entry.rank_high))]
    ties = [listing(names(labels[entry.contender] for entry in group)) for group in groups if len(group) > 1]
    return [say(" ", tie, " are tied.") for tie in ties]


def _tie(summary: StudySummary, ranking: Ranking, top: list[RankingEntry], labels: Labels) -> Phrase:
    """With the figures of each: a tie may be of equals, or with one of which too little is known."""
    definition = summary.definitions[ranking.metric]
    named: list[Words] = [
        say(Name(labels[entry.contender]), " ", _figure(summary, ranking, entry)) for entry in top[:MAX_NAMED]
    ]
    if len(top) > MAX_NAMED:
        named.append(f"{len(top) - MAX_NAMED} more")
    if not any(estimate_of(summary, ranking, entry).interval for entry in top):
        return say(f"not ranked, as each has a single run; {_extreme(definition)} first: ", listing(named), ".")
    if len(top) == len(ranking.entries):
        return say(f"tie, the differences in {definition.name} are not significant: ", listing(named), ".")
    tie = say(f"tie for the {_extreme(definition)} {definition.name}: ", listing(named), ". ")
    return say(tie, _against_baseline(ranking, top[0], labels))


def _extreme(definition: MetricDefinition) -> str:
    return "highest" if definition.higher_is_better else "lowest"


def _against_baseline(ranking: Ranking, best: RankingEntry, labels: Labels) -> Phrase:
    if ranking.baseline is None:
        return say("The baseline has no result here.")
    ratio = ratio_to_baseline(ranking, best.contender)
    if ratio is not None:
        return say(Name(labels[best.contender]), " is ", ratio, " the baseline ", Name(labels[ranking.baseline]), ".")
    follower = next(entry for entry in ranking.entries if entry is not best)
    gap = ratio_to_baseline(ranking, follower.contender)
    return say("It is the baseline; ", Name(labels[follower.contender]), " follows at ", gap or "–", ".")


def _figure(summary: StudySummary, ranking: Ranking, entry: RankingEntry) -> Quantity:
    found = estimated(estimate_of(summary, ranking, entry), summary.definitions[ranking.metric])
    assert found is not None  # it is ranked
    return found


def _missing(summary: StudySummary) -> list[Phrase]:
    sentences = []
    if failed := _failed(summary):
        sentences.append(say("Failed: ", joined(failed, "; "), "."))
    if not_made := [refusal.cell.contender for refusal in summary.refusals if refusal.was_tried]:
        variants = listing(names(dict.fromkeys(contender.variant for contender in not_made)))
        sentences.append(say("Could not be made: ", variants, "; run the study again to retry."))
    if refused := [refusal.cell for refusal in summary.refusals if not refusal.was_tried]:
        contenders = list(dict.fromkeys(cell.contender.name for cell in refused))
        named = listing(names(contenders)) if len(contenders) <= MAX_NAMED else say(f"{len(contenders)} contenders")
        whole = [one.workload for one in summary.rankings if not summary.cells_of(one.workload)]
        if whole and {cell.workload for cell in refused} <= set(whole):
            named = say("every contender on ", listing(names(whole)))
        sentences.append(say(f"Refused up front: {plural(len(refused), 'cell')} of ", named, "."))
    flagged = {outlier.trial_id for cell in summary.cells for outlier in cell.outliers}
    if flagged:
        sentences.append(say(f"Outliers: {plural(len(flagged), 'trial')} flagged (still included in the means)."))
    return sentences


def _failed(summary: StudySummary) -> list[Phrase]:
    """`a and b on every workload (unsupported)`: those that failed alike are named together."""
    labels = Labels.of(summary, MAX_NAME)
    without: dict[Contender, list[CellSummary]] = {}
    for cell in summary.cells:
        if cell.failures and not has_result(summary, cell):
            without.setdefault(cell.cell.contender, []).append(cell)
    alike: dict[Phrase, list[str]] = {}
    for contender, cells in without.items():
        own = [cell for cell in summary.cells if cell.cell.contender == contender]
        where = listing(names(cell.cell.workload for cell in cells))
        if len(cells) == len(own) > 2:
            where = say(f"all {len(own)} workloads tried")
        outcomes = ", ".join(sorted({group.failure.outcome.value for cell in cells for group in cell.failures}))
        alike.setdefault(say(" on ", where, f" ({outcomes})"), []).append(labels[contender])
    return [say(listing(names(contenders)), where) for where, contenders in alike.items()]


def _caveats(summary: StudySummary) -> list[Phrase]:
    sentences = []
    unfinished = sum(cell.stop_reason is StopReason.UNFINISHED for cell in summary.cells)
    if unfinished:
        total = plural(len(summary.cells), "cell")
        sentences.append(say(f"Not finished: {unfinished} of {total} lack trials; run the study again to resume."))
    estimates = [cell.metrics[summary.headline] for cell in summary.cells if has_result(summary, cell)]
    if any(not estimate.covers_starts for estimate in estimates):
        remedy = "" if summary.imported_from else " Set `instances` to 3 or more."
        sentences.append(
            say(
                "Caution: some cells have a single instance; their intervals do not cover a restart, so a difference "
                f"may come from the start alone.{remedy}"
            )
        )
    return sentences

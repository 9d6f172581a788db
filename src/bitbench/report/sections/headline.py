"""The answer before all others: what to run, how sure that is, and what it takes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bitbench.core.cell import Cell, Contender
from bitbench.core.found.summary import Estimate, Ranking, RankingEntry, Ratio, Spread, StudySummary
from bitbench.core.recorded.trial import Outcome
from bitbench.ground.units import UNKNOWN, significant
from bitbench.report.document.numbers import mean_and_interval, scale_for, size_scale, times
from bitbench.report.document.text import MAX_NAME, listing, table
from bitbench.report.labels import Labels

MAX_NAMED = 4  # of a tie, in a sentence or a cell

Quote = Callable[[str], str]  # how a name is written in the format at hand


@dataclass(frozen=True)
class Lead:
    """`verdict` is a few words, `reasons` whole sentences."""

    verdict: str
    reasons: tuple[str, ...]


def lead(summary: StudySummary, quote: Quote) -> Lead | None:
    """None where there is nothing to choose between. A choice must be ahead of the baseline somewhere, and nowhere
    surely behind anybody: a contender that is best for one load and worse for another, or fails where another does not,
    is no answer for both. One whose quality is flagged may be named, but nobody is told to run it.
    """
    answered = [one for one in summary.rankings if one.entries]
    rankings = [one for one in answered if len(one.entries) > 1]
    if not answered and len(summary.rankings) > 1:  # of a single workload its own verdict says it
        return Lead("No answer:", ("no contender has a result.",))
    if not rankings:
        return None
    labels = Labels.of(summary, MAX_NAME)
    name = summary.definitions[summary.headline].name
    if not any(estimate_of(summary, one, entry).interval for one in rankings for entry in one.entries):
        why = "With one run per cell nothing is known about its spread; what follows are the best means."
        return Lead("Nobody is ranked.", (f"{why}{_all(labels)}",))
    sure = {ranking.workload: won for ranking in rankings if (won := _ahead(ranking))}
    if not sure:
        return _no_winner(summary, answered, labels, quote)
    candidates = _never_behind(summary, answered)
    choices = [one for one in candidates if any(one in won for won in sure.values())]
    flagged = {one.contender: one.reason for one in summary.quality if one.flagged}
    if not choices:
        return _by_workload(answered, sure, set(flagged), labels, quote)
    best = max(choices, key=lambda one: (one not in flagged, *_merit(one, rankings, sure)))
    others = [quote(labels[one]) for one in choices if one != best and (one in flagged) is (best in flagged)]
    told = f", or {_either(others)}, which cannot be told from it" if others else ""
    advice = "Ahead, but flagged for its quality:" if best in flagged else "Run"
    return Lead(
        f"{advice} {quote(labels[best])}{told}.",
        (
            f"{_everywhere(answered).capitalize()} nobody is surely ahead of it by {name}.{_all(labels)}",
            *([f"Its quality is flagged: {flagged[best]}."] if best in flagged else []),
            *_against_baseline(best, rankings, sure, labels, quote),
            *_doubtful([one for one in candidates if one not in choices and one != summary.baseline], labels, quote),
            *_takes(summary, best),
        ),
    )


def best_table(summary: StudySummary, quote: Quote) -> str:
    """One row per workload: the best mean, and who cannot be told from it."""
    labels = Labels.of(summary, MAX_NAME)
    definition = summary.definitions[summary.headline]
    bests = [(one, one.entries[0]) for one in summary.rankings if one.entries]
    scale = scale_for(definition, [estimate_of(summary, *pair).mean for pair in bests])
    rows = []
    for ranking in summary.rankings:
        if not ranking.entries:
            rows.append([quote(ranking.workload), "no result", UNKNOWN, UNKNOWN, UNKNOWN])
            continue
        best = ranking.entries[0]
        is_baseline = best.contender == ranking.baseline
        rows.append(
            [
                quote(ranking.workload),
                quote(labels[best.contender]),
                mean_and_interval(estimate_of(summary, ranking, best), scale),
                "baseline" if is_baseline else times(best.ratio_to_baseline),
                _tied(ranking, labels, quote),
            ]
        )
    header = [
        "Workload",
        "Best mean",
        f"{definition.label} ({scale.unit})",
        "vs. baseline",
        "Cannot be told from it",
    ]
    return table(header, rows, left=(0, 1, 4))


def estimate_of(summary: StudySummary, ranking: Ranking, entry: RankingEntry) -> Estimate:
    cell = Cell(contender=entry.contender, workload=ranking.workload)
    return next(one for one in summary.cells if one.cell == cell).metrics[ranking.metric]


def _tied(ranking: Ranking, labels: Labels, quote: Quote) -> str:
    tied = [quote(labels[one]) for one in ranking.entries[0].tied_with]
    if not tied:
        return "nobody"
    if len(tied) == len(ranking.entries) - 1 > 1:
        return f"all {len(tied)} others"
    return listing(tied) if len(tied) <= MAX_NAMED else f"{listing(tied[: MAX_NAMED - 1])}, … ({len(tied)} in all)"


def _ahead(ranking: Ranking) -> list[Contender]:
    """Those at the top that are surely better than the baseline; without one, than anybody."""
    top = [entry for entry in ranking.entries if entry.rank_low == 1]
    if ranking.baseline is None:
        return [entry.contender for entry in top] if len(top) < len(ranking.entries) else []
    base = next(entry for entry in ranking.entries if entry.contender == ranking.baseline)
    return [one.contender for one in top if one is not base and base.contender not in one.tied_with]


def _never_behind(summary: StudySummary, rankings: list[Ranking]) -> list[Contender]:
    """At the top everywhere, and nowhere below the baseline by the interval of the ratio alone."""
    better = summary.definitions[summary.headline].higher_is_better
    tops = [
        [one.contender for one in ranking.entries if one.rank_low == 1 and not _behind(one.ratio_to_baseline, better)]
        for ranking in rankings
    ]
    return [one for one in tops[0] if all(one in top for top in tops)]


def _behind(ratio: Ratio | None, higher_is_better: bool) -> bool:
    if ratio is None or ratio.interval is None:
        return False
    return ratio.interval.high < 1 if higher_is_better else ratio.interval.low > 1


def _merit(one: Contender, rankings: list[Ranking], sure: dict[str, list[Contender]]) -> tuple[int, int]:
    """Surely ahead at more workloads; then better places."""
    places = [[entry.contender for entry in ranking.entries].index(one) for ranking in rankings]
    return sum(one in won for won in sure.values()), -sum(places)


def _no_winner(summary: StudySummary, answered: list[Ranking], labels: Labels, quote: Quote) -> Lead:
    where = _everywhere(answered).capitalize()
    name = summary.definitions[summary.headline].name
    baselines = {one.baseline for one in answered}
    if baselines == {None}:
        return Lead("A tie.", (f"{where} nobody is surely ahead by {name}.{_all(labels)}",))
    (baseline,) = baselines - {None}
    assert baseline is not None
    own = quote(labels[baseline])
    if without := [quote(one.workload) for one in answered if one.baseline is None]:
        ahead = f"Where it has a result, nobody is surely ahead of the baseline {own} by {name}"
        others = f"at {listing(without)} it has none, and others have"
        return Lead("It depends on the workload.", (f"{ahead}; {others}.{_all(labels)}",))
    rankings = [one for one in answered if len(one.entries) > 1]
    alone = all(one.entries[0].contender == baseline and not one.entries[0].tied_with for one in rankings)
    if alone:
        return Lead(f"Keep the baseline {own}.", (f"{where} it is surely ahead by {name}.{_all(labels)}",))
    return Lead(
        "A tie: speed alone gives no reason to change.",
        (f"{where} nobody is surely ahead of the baseline {own} by {name}.{_all(labels)}",),
    )


def _by_workload(
    answered: list[Ranking], sure: dict[str, list[Contender]], flagged: set[Contender], labels: Labels, quote: Quote
) -> Lead:
    """Nobody is good everywhere: who is, where."""
    reasons = []
    for ranking in answered:
        if won := sure.get(ranking.workload):
            entries = [entry for entry in ranking.entries if entry.contender in won]
            best, *others = [one for one in entries if one.contender not in flagged] or entries
            told = f" (or {_either([quote(labels[one.contender]) for one in others])})" if others else ""
            gain = "" if best.ratio_to_baseline is None else f", {times(best.ratio_to_baseline)} the baseline"
            named = f"{quote(labels[best.contender])}{told}"
            advice = f"{named} is ahead, but flagged for its quality" if best.contender in flagged else f"run {named}"
            reasons.append(f"At {quote(ranking.workload)} {advice}{gain}.")
        elif len(ranking.entries) == 1:
            only = quote(labels[ranking.entries[0].contender])
            reasons.append(f"At {quote(ranking.workload)} only {only} has a result.")
    open_ones = [quote(one.workload) for one in answered if one.workload not in sure and len(one.entries) > 1]
    if open_ones:
        reasons.append(f"At {listing(open_ones)} nobody is surely ahead of the baseline.")
    return Lead("It depends on the workload.", (*reasons[:-1], f"{reasons[-1]}{_all(labels)}"))


def _against_baseline(
    best: Contender, rankings: list[Ranking], sure: dict[str, list[Contender]], labels: Labels, quote: Quote
) -> Iterator[str]:
    known = [one for one in rankings if one.baseline is not None]
    ahead = [one for one in known if best in sure.get(one.workload, ())]
    if not ahead or (baseline := ahead[0].baseline) is None:
        return
    parts = [f"{quote(one.workload)} ({times(_ratio(one, best))})" for one in ahead[:MAX_NAMED]]
    if len(ahead) > MAX_NAMED:
        parts.append(f"{len(ahead) - MAX_NAMED} more")
    tied = ""
    if rest := [one for one in known if one not in ahead]:
        ratios = sorted(ratio.value for one in rest if (ratio := _ratio(one, best)) is not None)
        shown = " to ".join(f"{value:.2f}×" for value in dict.fromkeys(ratios[:1] + ratios[-1:])) or UNKNOWN
        others = listing([quote(one.workload) for one in rest]) if len(rest) <= 2 else f"the {len(rest)} others"
        tied = f"; not surely at {others} ({shown})"
    yield f"It is surely ahead of the baseline {quote(labels[baseline])} at {listing(parts)}{tied}."


def _ratio(ranking: Ranking, contender: Contender) -> Ratio | None:
    return next(one.ratio_to_baseline for one in ranking.entries if one.contender == contender)


def _doubtful(contenders: list[Contender], labels: Labels, quote: Quote) -> Iterator[str]:
    if contenders:
        names = listing([quote(labels[one]) for one in contenders])
        yield f"Nowhere told from it, but not surely ahead of the baseline either: {names}."


def _takes(summary: StudySummary, best: Contender) -> Iterator[str]:
    """Why it may be faster, and what it costs: bytes of weights, memory, quality."""
    of = {one.contender: one.memory for one in summary.contenders}
    own, base = of.get(best), of.get(summary.baseline) if summary.baseline else None
    if own and base and best != summary.baseline:
        pairs: list[tuple[str, float | None, float | None]] = [
            ("Its weights take", own.weight_bytes_stored, base.weight_bytes_stored),
            ("Its device memory peaks at", _most(own.device_peak_bytes), _most(base.device_peak_bytes)),
            ("Its memory peaks at", _most(own.peak_bytes), _most(base.peak_bytes)),
        ]
        for what, mine, theirs in pairs:
            if mine is not None and theirs is not None:
                scale = size_scale([mine, theirs])
                shown = [significant(size / scale.factor) for size in (mine, theirs)]
                yield f"{what} {shown[0]} {scale.unit} (baseline {shown[1]})."
    if summary.quality:
        if not any(one.contender == best and one.outcome is Outcome.OK for one in summary.quality):
            yield "What it costs in quality is not known: there is no result for it."
    elif not summary.imported_from:
        yield "What it costs in quality was not measured in this study."


def _most(spread: Spread | None) -> float | None:
    return spread.high if spread else None


def _everywhere(answered: list[Ranking]) -> str:
    """Where one has a result alone, there is nobody to be ahead of."""
    compared = sum(len(one.entries) > 1 for one in answered)
    if compared == len(answered):
        return "at the workload that has results" if compared == 1 else f"at all {compared} workloads with results"
    return f"at the {'workload' if compared == 1 else f'{compared} workloads'} with more than one result"


def _either(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _all(labels: Labels) -> str:
    return f" (All are of {labels.shared}.)" if labels.shared else ""

"""The answer before all others: what to use, how sure that is, and what it takes."""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any, Literal

from bitbench.analysis.results.estimate import Estimate, Verdict
from bitbench.analysis.results.summary import (
    AgainstBaseline,
    PointSummary,
    QualityState,
    Ranking,
    RankingEntry,
    StudySummary,
)
from bitbench.feature import Offer, ReportPlace, feature_errors_as_warnings, report_parts
from bitbench.records.trial import NOT_THE_ENGINES, Outcome
from bitbench.reports.document.model import Name, Phrase, Unit
from bitbench.reports.document.numbers import number, percent, size, times
from bitbench.reports.document.words import (
    MAX_NAME,
    Words,
    joined,
    listing,
    name_phrases,
    plural,
    ratio_meaning,
    say,
    strong,
)
from bitbench.reports.labels import Labels
from bitbench.reports.sections.ranked import (
    LESS_MEMORY,
    objectives_in_words,
    ranked_entry,
    ranked_possible_bests,
    ranked_ratio_to_baseline,
)
from bitbench.study.plan import Config
from bitbench.study.study import FEWEST_BLOCKS

MAX_NAMED = 4  # in a sentence or a point
NOT_CONFIRMED = "Leading, not confirmed: "


@dataclass(frozen=True)
class Lead:
    """`verdict` is a few words, `reasons` whole sentences, `chosen` what it recommends."""

    verdict: Phrase
    reasons: tuple[Phrase, ...]
    chosen: tuple[Config, ...] = ()
    leading: int = 1  # so many of the reasons belong to the answer itself

    @property
    def headline(self) -> Phrase:
        """What stands beside a picture."""
        return joined([strong(self.verdict), *self.reasons[: self.leading]], " ")

    @property
    def more(self) -> tuple[Phrase, ...]:
        return self.reasons[self.leading :]

    @property
    def phrase(self) -> Phrase:
        return joined([strong(self.verdict), *self.reasons], " ")


class _Found:
    """What the rankings say: where somebody is significantly better than the baseline, and who."""

    def __init__(self, summary: StudySummary, answered: list[Ranking]) -> None:
        self.summary = summary
        self.answered = answered  # at least one config has a result
        # A config with the only result has no other to be ahead of.
        self.compared = [ranking for ranking in answered if len(ranking.entries) > 1]
        self.ahead = {ranking.workload: won for ranking in self.compared if (won := _ahead(ranking))}
        self.flagged = {row.config: row.reason for row in summary.quality if row.flagged}  # for their quality, and why
        self._labels = Labels.of(summary, MAX_NAME)

    def where_ahead(self, config: Config) -> list[Ranking]:
        return [ranking for ranking in self.compared if config in self.ahead.get(ranking.workload, ())]

    def name(self, config: Config) -> Name:
        return Name(self._labels[config])

    def names(self, configs: Iterable[Config]) -> list[Phrase]:
        return name_phrases(self._labels[config] for config in configs)


def lead(summary: StudySummary) -> Lead | None:
    """None where there is nothing to choose between. A choice must be ahead of the baseline somewhere, and nowhere
    significantly behind any other: a config that is best for one load and worse for another, or fails where another
    does not, is no answer for both. One whose quality is flagged may be named, but is never recommended: the choice is
    among the others, if any of them is ahead.
    """
    if not summary.study.workloads:
        return next((found for found in lead_parts_of_features(summary, "lead") if found is not None), None)
    found = _Found(summary, [ranking for ranking in summary.rankings if ranking.entries])
    if not found.answered:
        return Lead(say("No answer:"), (say("no config has a result."),))
    if not found.compared:
        return None
    needed = [ranking.starts_needed for ranking in found.compared if ranking.starts_needed is not None]
    if len(needed) == len(found.compared):
        why = f"The next start may differ as much as two configs do; a decision needs {max(needed)} starts of each."
        return Lead(say("No ranking: one start."), (say(why),))
    sound = _Found(summary, [_without(ranking, found.flagged) for ranking in found.answered])
    if sound.ahead:
        chosen = _decided(sound)
        return replace(chosen, reasons=(*chosen.reasons, *_faster_but_flagged(found, sound)))
    return _decided(found)


def lead_parts_of_features(
    summary: StudySummary, asked: Literal["section", "sentences", "lead"], place: ReportPlace | None = None
) -> Iterator[Any]:
    """What features say of their own parts of a summary, at this place of a report or anywhere."""
    for part, feature in report_parts():
        target = getattr(part, asked)
        if target is not None and part.name in summary.parts and place in (None, part.place):
            with feature_errors_as_warnings(feature):
                said = Offer(feature, target).load()(summary.parts[part.name], summary)
                yield from said if asked == "sentences" else [said]


def _decided(found: _Found) -> Lead:
    if not found.ahead:
        return _no_winner(found)
    candidates = _never_behind(found)
    choices = [candidate for candidate in candidates if found.where_ahead(candidate)]
    return _choice(found, candidates, choices) if choices else _by_workload(found)


def _without(ranking: Ranking, flagged: Container[Config]) -> Ranking:
    """Of those whose quality is not flagged, the best are those that no other of them is significantly ahead of: one
    that only a flagged one beats may be the best of them."""
    kept = tuple(entry for entry in ranking.entries if entry.config not in flagged or entry.config == ranking.baseline)
    if len(kept) == len(ranking.entries):
        return ranking
    top = ranked_possible_bests(ranking)
    bests = [entry.config for entry in kept if entry.config in top]
    if len(bests) < len(top):
        bests = [entry.config for place, entry in enumerate(kept) if _leads(entry, kept[:place])]
    return ranking.model_copy(update={"entries": kept, "possible_bests": tuple(bests)})


def _leads(entry: RankingEntry, better: Sequence[RankingEntry]) -> bool:
    """`better`: those with a better mean. One with a single trial is not ranked, and ahead of no other."""
    ranked = [other.config for other in better if other.rank_low is not None]
    return entry.rank_low is not None and all(config in entry.undecided_with for config in ranked)


def _faster_but_flagged(found: _Found, sound: _Found) -> Iterator[Phrase]:
    """What would be the fastest, and why it is not the choice."""
    for config, why in found.flagged.items():
        won = found.where_ahead(config)
        if won and not sound.where_ahead(config):
            gains = [_ratio_on(ranking, config) for ranking in won[:MAX_NAMED]]
            yield say(found.name(config), " is faster, ", listing(gains), f", but its quality is flagged: {why}.")


def _ahead(ranking: Ranking) -> list[Config]:
    """Those that may be the best and are significantly better than the baseline; without one, than any other."""
    top = ranked_possible_bests(ranking)
    if ranking.baseline is None:
        return top if len(top) < len(ranking.entries) else []
    faster = [entry.config for entry in ranking.entries if entry.against_baseline is AgainstBaseline.FASTER]
    return [config for config in top if config in faster]


def _never_behind(found: _Found) -> list[Config]:
    """May be the best everywhere, and nowhere below the baseline by the interval of the ratio alone."""

    def is_behind(ratio: Estimate | None) -> bool:
        return ratio is not None and ratio.is_below(1)

    entries = [entry for ranking in found.answered for entry in ranking.entries]
    behind = {entry.config for entry in entries if is_behind(entry.ratio_to_baseline)}
    behind |= _left_early(found)
    first, *others = [ranked_possible_bests(ranking) for ranking in found.answered]
    return [config for config in first if config not in behind and all(config in top for top in others)]


def _left_early(found: _Found) -> set[Config]:
    """Return the configs with too few starts for a claim on a workload where others have enough.

    They may be the best there only because nothing can be claimed of them.
    """
    early: set[Config] = set()
    for ranking in found.answered:
        starts = {point.point.config: _starts(point, ranking.metric) for point in found.summary.points
                  if point.point.workload == ranking.workload}  # fmt: skip
        ranked = [entry.config for entry in ranking.entries if entry.config != ranking.baseline]
        few = {config for config in ranked if starts[config] < FEWEST_BLOCKS}
        if len(few) < len(ranked):
            early |= few
    return early


def _starts(point: PointSummary, metric: str) -> int:
    estimate = point.metrics.get(metric)
    if estimate is None or estimate.basis is None:
        return FEWEST_BLOCKS
    return estimate.basis.starts


def _choice(found: _Found, candidates: list[Config], choices: list[Config]) -> Lead:
    def merit(config: Config) -> tuple[bool, int, int, float]:
        """Not flagged; then significantly ahead on more workloads; then better places; then larger gains."""
        places = [[entry.config for entry in ranking.entries].index(config) for ranking in found.compared]
        gains = [abs(log(entry.ratio_to_baseline.value)) for ranking in found.where_ahead(config)
                 if (entry := ranked_entry(ranking, config)) and entry.ratio_to_baseline]  # fmt: skip
        return config not in found.flagged, len(found.where_ahead(config)), -sum(places), sum(gains)

    best = max(choices, key=merit)
    rivals = [choice for choice in choices if choice != best and (choice in found.flagged) is (best in found.flagged)]
    others = [candidate for candidate in candidates if candidate not in choices and candidate != found.summary.baseline]
    against = [*_against_baseline(found, best)]
    if rivals and against:
        against[0] = say(found.name(best), ": ", against[0])
    reasons = [*against, *_cautions(found, best, found.compared)]
    if least := _least_memory(found, rivals, best):
        reasons.append(say("Of these ", least, "."))
    if others:
        verb = "is" if len(others) == 1 else "are"
        reasons.append(say(listing(found.names(others)), f" {verb} not significantly faster than the baseline."))
    reasons += _to_measure_quality(found, [best, *rivals])
    recommended = () if best in found.flagged else (best, *rivals)
    return Lead(_verdict(found, best, rivals, others), tuple(reasons), recommended)


def _verdict(found: _Found, best: Config, rivals: list[Config], others: list[Config]) -> Phrase:
    """What to use, in one sentence with what speaks against it: what is undecided, and quality that is flagged or
    unknown.

    `rivals`: as good a choice; `others`: not told from it either, but no gain over the baseline.
    """
    if best in found.flagged:
        named = listing(found.names([*rivals, *others]), most=MAX_NAMED)
        between = say(", undecided against ", named) if rivals or others else ()
        return say(
            found.name(best), " is the fastest", between, f", but its quality is flagged: {found.flagged[best]}."
        )
    head = "Use " if all(_is_sure(ranking, best) for ranking in found.where_ahead(best)) else NOT_CONFIRMED
    caveat = _quality_caveat(found, [best, *rivals])
    against: list[Words] = ["between them"] if rivals else []
    if others:
        against.append(say("against ", listing(found.names(others), most=MAX_NAMED)))
    undecided = say(" (undecided ", listing(against), ")") if against else ()
    return say(head, listing(found.names([best, *rivals]), "or"), undecided, ", but " if caveat else "", caveat, ".")


def _is_sure(ranking: Ranking, config: Config) -> bool:
    """Whether the interval that is quoted excludes 1: a claim stays once it is made, whatever later blocks show."""
    entry = ranked_entry(ranking, config)
    if ranking.baseline is None or entry is None:
        return True
    return entry.ratio_to_baseline is not None and entry.ratio_to_baseline.is_above(1)


def _quality_caveat(found: _Found, chosen: list[Config], whose_all: str = "") -> Phrase:
    """`its quality was not measured`, or is undecided; nothing where it is known of all, or is what others are compared
    to, or where weights are random, of which the report speaks before all else.

    `whose_all`: what it is called where it is unknown of all of them.
    """
    rows = found.summary.quality
    fine = {row.config for row in rows if row.is_known}
    fine |= {own.config for own in found.summary.configs if own.is_reference or own.random_weights}
    unknown = [config for config in chosen if config not in fine]
    if not unknown:
        open_ones = {row.config for row in rows if row.state is QualityState.UNDECIDED}
        undecided = [config for config in chosen if config in open_ones]
        return say("the quality of ", listing(found.names(undecided)), " is undecided") if undecided else ()
    whose = say(whose_all or ("its quality" if len(chosen) == 1 else "their quality"))
    if len(unknown) < len(chosen):
        whose = say("the quality of ", listing(found.names(unknown)))
    return say(whose, " is unknown" if rows or found.summary.imported_from else " was not measured")


def _least_memory(found: _Found, among: Sequence[Config], beside: Config) -> Phrase:
    """`a takes the least memory: it peaks at 236 MiB, b at 357 MiB`; empty where that is no reason to choose it."""
    known = {config.config: config.memory.peak for config in found.summary.configs}
    peaks = {config: peak.high for config in (beside, *among) if (peak := known[config]) and peak.high is not None}
    least = min(peaks, key=lambda config: peaks[config], default=beside)
    if beside not in peaks or peaks[least] >= (1 - LESS_MEMORY) * peaks[beside]:
        return ()
    takes = say(found.name(least), " takes the least memory: it peaks at ", size(peaks[least]))
    return say(takes, ", ", found.name(beside), " at ", size(peaks[beside]))


def _no_winner(found: _Found) -> Lead:
    baseline = next((ranking.baseline for ranking in found.answered if ranking.baseline is not None), None)
    if baseline is None:
        return Lead(say("Undecided."), (say("No difference is significant."),))
    own = found.name(baseline)
    if without := [ranking for ranking in found.answered if ranking.baseline is None]:
        reason = say("Where the baseline ", own, " has a result, no config is significantly faster; ", _on(without))
        return Lead(say("It depends on the workload."), (say(reason, " it has none, and others have."),))
    won = [ranking for ranking in found.compared if ranked_possible_bests(ranking) == [baseline]]
    if won:
        reasons = [say("It is significantly faster ", _on(won), ".")]
        if rest := [ranking for ranking in found.compared if ranking not in won]:
            reasons.append(say("No other is significantly faster ", _on(rest), "."))
        if baseline in found.flagged:
            why = f", but its quality is flagged: {found.flagged[baseline]}."
            return Lead(say("The baseline ", own, " is the fastest", why), tuple(reasons))
        return Lead(say("Keep the baseline ", own, "."), tuple(reasons), (baseline,))
    reasons = [say("No config is significantly faster than the baseline ", own, "."), *_looks(found)]
    rivals = [config for config in _never_behind(found) if config != baseline and config not in found.flagged]
    if least := _least_memory(found, rivals, baseline):
        reasons.append(say("Of those that may be as fast, ", least, "."))
    return Lead(say("Undecided: speed alone gives no reason to change."), tuple(reasons))


def _looks(found: _Found) -> Iterator[Phrase]:
    """Who is ahead so far by more than the interval, and how many starts a decision needs."""
    for ranking in found.compared[:MAX_NAMED]:
        first = ranking.entries[0]
        ratio = first.ratio_to_baseline
        if ranking.baseline is not None and ratio is not None and ratio.interval and ratio.interval[0] > 1:
            gain = _gain(found, ranking, first.config)
            yield say(found.name(first.config), " looks faster, not yet decided: ", gain, " ", _on([ranking]), ".")
    precision = found.summary.precision
    if precision is not None and precision.blocks < FEWEST_BLOCKS:
        yield say(f"A decision needs {FEWEST_BLOCKS} starts of each config; there are {precision.blocks}.")


def _by_workload(found: _Found) -> Lead:
    """No config is good everywhere: which is, where."""
    reasons, cautions = [], list[Phrase]()
    chosen: dict[Config, None] = {}
    for ranking in found.answered:
        on = say("On ", Name(ranking.workload), " ")
        if won := found.ahead.get(ranking.workload):
            best, *others = [config for config in won if config not in found.flagged] or won
            chosen |= dict.fromkeys([best, *others])
            has_ratio = ranked_ratio_to_baseline(ranking, best) is not None
            named = say(listing(found.names([best, *others]), "or"), ", " if has_ratio else "")
            gain = _gain(found, ranking, best) if has_ratio else ()
            if best in found.flagged:
                reasons.append(say(on, named, gain, ", is the fastest, but its quality is flagged."))
            else:
                head = "use " if _is_sure(ranking, best) else NOT_CONFIRMED.lower()
                reasons.append(say(on, head, named, gain, "."))
                cautions += [*_on_same_engine(found, ranking, best), *_cautions(found, best, [ranking])]
        elif len(ranking.entries) == 1:
            reasons.append(say(on, "only ", found.name(ranking.entries[0].config), " has a result."))
    if undecided := [ranking for ranking in found.compared if ranking.workload not in found.ahead]:
        on = listing(name_phrases(ranking.workload for ranking in undecided))
        reasons.append(say("On ", on, " no config is significantly faster than the baseline."))
    leading = len(reasons)
    recommended = tuple(config for config in chosen if config not in found.flagged)
    caveat = _quality_caveat(found, list(chosen), f"the quality of the {'choice' if len(chosen) == 1 else 'choices'}")
    if flagged := [config for config in chosen if config in found.flagged]:
        caveat = say("the quality of ", listing(found.names(flagged)), " is flagged")
    verdict = say("It depends on the workload", "; " if caveat else "", caveat, ".")
    return Lead(verdict, (*reasons, *cautions, *_to_measure_quality(found, list(chosen))), recommended, leading)


def _cautions(found: _Found, best: Config, rankings: Sequence[Ranking]) -> Iterator[Phrase]:
    """A choice may be the fastest and not always answer, or not in the time that the study promises."""
    for ranking in rankings:
        point = next(point for point in found.summary.points_of(ranking.workload) if point.point.config == best)
        failed = sum(run.outcome not in (Outcome.OK, *NOT_THE_ENGINES) for run in point.runs)
        if failed:
            yield say(f"Caution: {failed} of its {len(point.runs)} trials on ", Name(ranking.workload), " failed.")
        if missed := [objective for objective in point.objectives if objective.verdict is Verdict.MISSED]:
            where = say(" on ", Name(ranking.workload), "; ", Name("bitbench recommend --slo"))
            yield say(
                "Caution: it misses ", objectives_in_words(missed), where, " chooses among those that meet such limits."
            )


def _to_measure_quality(found: _Found, chosen: list[Config]) -> Iterator[Phrase]:
    if not found.summary.quality and not found.summary.imported_from and _quality_caveat(found, chosen):
        yield say("To measure quality, add ", Name("quality: {}"), " to the study and run it into a new folder.")


def _against_baseline(found: _Found, best: Config) -> Iterator[Phrase]:
    ahead = [ranking for ranking in found.where_ahead(best) if ranking.baseline is not None]
    if not ahead:
        return
    first, *more = ahead
    parts: list[Words] = [
        say(_gain(found, first, best), " ", _on([first])),
        *(_ratio_on(ranking, best) for ranking in more[: MAX_NAMED - 1]),
        *([plural(len(ahead) - MAX_NAMED, "more workload")] if len(ahead) > MAX_NAMED else []),
    ]
    yield say(listing(parts), ".")
    yield from _on_same_engine(found, first, best)
    if rest := [ranking for ranking in found.compared if ranking.baseline is not None and ranking not in ahead]:
        on = listing(name_phrases(ranking.workload for ranking in rest), most=MAX_NAMED)
        yield say("On ", on, " the difference is not significant.")


def _gain(found: _Found, ranking: Ranking, best: Config) -> Phrase:
    """`1.31× (95 % CI 1.27× to 1.36×) the output throughput of a`"""
    entry = ranked_entry(ranking, best)
    assert entry is not None
    ratio = entry.ratio_to_baseline
    assert ratio is not None
    assert ranking.baseline is not None
    ends = [number(end, Unit.RATIO) for end in ratio.interval or ()]
    confidence = percent(found.summary.study.measure.confidence)
    range_of_it = say(f" ({confidence} CI ", listing(ends, "to"), ")") if ends else ()
    than = ratio_meaning(found.summary.definitions[ranking.metric], found.name(ranking.baseline))
    return say(number(ratio.value, Unit.RATIO), range_of_it, " ", than)


def _on_same_engine(found: _Found, ranking: Ranking, best: Config) -> Iterator[Phrase]:
    """Tell what quantization alone gains, if the baseline runs on another engine."""
    entry = ranked_entry(ranking, best)
    if entry is not None and entry.same_engine is not None:
        other = say("the unquantized ", found.name(entry.same_engine.unquantized))
        than = ratio_meaning(found.summary.definitions[ranking.metric], other)
        ratio = times(entry.same_engine.ratio)
        yield say("On the same engine, ", found.name(best), " has ", ratio, " ", than, " ", _on([ranking]), ".")


def _ratio_on(ranking: Ranking, config: Config) -> Phrase:
    return say(ranked_ratio_to_baseline(ranking, config), " ", _on([ranking]))


def _on(some: list[Ranking]) -> Phrase:
    return say("on ", listing(name_phrases(ranking.workload for ranking in some)))

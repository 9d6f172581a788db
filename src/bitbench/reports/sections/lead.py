"""The answer before all others: what to use on each workload, how sure that is, and what it takes."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bitbench.analysis.results.estimate import Verdict
from bitbench.analysis.results.summary import (
    AgainstBaseline,
    QualityState,
    Ranking,
    RankingEntry,
    StudySummary,
)
from bitbench.feature import Offer, ReportPlace, feature_errors_as_warnings, report_parts
from bitbench.records.trial import NOT_THE_ENGINES, Outcome
from bitbench.reports.document.model import Name, Phrase, Unit
from bitbench.reports.document.numbers import number, percent, times
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
from bitbench.reports.labels import CHOSEN, FLAGGED, Labels
from bitbench.reports.sections.ranked import (
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

    @property
    def headline(self) -> Phrase:
        """The verdict and the first reason, for the place beside a picture."""
        return joined([strong(self.verdict), *self.reasons[:1]], " ")

    @property
    def more(self) -> tuple[Phrase, ...]:
        return self.reasons[1:]

    @property
    def phrase(self) -> Phrase:
        return joined([strong(self.verdict), *self.reasons], " ")


class _Found:
    """What the rankings of a summary say, and whose quality is flagged."""

    def __init__(self, summary: StudySummary) -> None:
        self.summary = summary
        self.answered = [ranking for ranking in summary.rankings if ranking.entries]
        # A config with the only result has no other to be ahead of.
        self.compared = [ranking for ranking in self.answered if len(ranking.entries) > 1]
        self.flagged = {row.config: row.reason for row in summary.quality if row.flagged}
        self._labels = Labels.of(summary, MAX_NAME)

    def name(self, config: Config) -> Name:
        return Name(self._labels[config])

    def names(self, configs: Sequence[Config]) -> list[Phrase]:
        return name_phrases(self._labels[config] for config in configs)


@dataclass(frozen=True)
class _Choice:
    """What to use on some workloads. `rivals` may be as fast, but no claim says that they gain anything."""

    configs: tuple[Config, ...]
    rivals: tuple[Config, ...]
    is_sure: bool
    rankings: list[Ranking]


def lead(summary: StudySummary) -> Lead | None:
    """Return what to use on each workload; None if there is nothing to choose between.

    A choice may be the best on its workload and is significantly faster than the baseline there. A config with flagged
    quality is named and not recommended.
    """
    if not summary.study.workloads:
        return next(
            (found for found in lead_parts_of_features(summary, "lead") if found is not None), None
        )
    found = _Found(summary)
    if not found.answered:
        return Lead(say("No answer:"), (say("no config has a result."),))
    if not found.compared:
        return None
    needed = [
        ranking.starts_needed for ranking in found.compared if ranking.starts_needed is not None
    ]
    if len(needed) == len(found.compared):
        why = f"The next start may differ as much as two configs do; a decision needs {max(needed)} starts of each."
        return Lead(say("No ranking: one start."), (say(why),))
    choices = _choices(found)
    flagged = list(_fastest_but_flagged(found))
    if not choices:
        verdict = (
            flagged[0] if flagged else say("Undecided: speed alone gives no reason to change.")
        )
        return Lead(verdict, (*_undecided(found, ()), *flagged[1:], *_who_looks_faster(found)))
    chosen = tuple(dict.fromkeys(config for choice in choices for config in choice.configs))
    reasons: list[Phrase] = []
    for choice in choices:
        reasons += _gains(found, choice, is_named=len(choices) > 1 or len(choice.configs) > 1)
    reasons += _undecided(
        found, [ranking.workload for choice in choices for ranking in choice.rankings]
    )
    reasons += flagged
    for choice in choices:
        reasons += [*_on_same_engine(found, choice), *_cautions(found, choice)]
    reasons += _to_measure_quality(found, chosen)
    return Lead(_verdict(found, choices, chosen), tuple(reasons), chosen)


def answer_marks(summary: StudySummary, found: Lead | None) -> dict[Config, str]:
    """Return the mark of each config whose quality is flagged, or that the answer chooses."""
    marks = {row.config: FLAGGED for row in summary.quality if row.flagged}
    return marks | dict.fromkeys(found.chosen if found else (), CHOSEN)


def lead_parts_of_features(
    summary: StudySummary,
    asked: Literal["section", "sentences", "lead"],
    place: ReportPlace | None = None,
) -> Iterator[Any]:
    """What features say of their own parts of a summary, at this place of a report or anywhere."""
    for part, feature in report_parts():
        target = getattr(part, asked)
        if target is not None and part.name in summary.parts and place in (None, part.place):
            with feature_errors_as_warnings(feature):
                said = Offer(feature, target).load()(summary.parts[part.name], summary)
                yield from said if asked == "sentences" else [said]


def _choices(found: _Found) -> list[_Choice]:
    """Group the workloads by what is best there, among the configs whose quality is not flagged."""
    groups: dict[object, _Choice] = {}
    for ranking in found.compared:
        sound = _without(ranking, found.flagged)
        configs = tuple(config for config in _ahead(sound) if config not in found.flagged)
        if configs:
            decided = {*configs, ranking.baseline}
            rivals = tuple(
                config for config in ranked_possible_bests(sound) if config not in decided
            )
            choice = _Choice(configs, rivals, _is_sure(ranking, configs[0]), [])
            alike = frozenset(configs), frozenset(rivals), choice.is_sure
            groups.setdefault(alike, choice).rankings.append(ranking)
    return list(groups.values())


def _ahead(ranking: Ranking) -> list[Config]:
    """Return those that may be the best and are significantly faster than the baseline.

    The baseline itself counts if no other may be the best. Without a baseline, those that are faster than any other.
    """
    top = ranked_possible_bests(ranking)
    if ranking.baseline is None:
        return top if len(top) < len(ranking.entries) else []
    if top == [ranking.baseline]:
        return top
    faster = [
        entry.config
        for entry in ranking.entries
        if entry.against_baseline is AgainstBaseline.FASTER
    ]
    return [config for config in top if config in faster]


def _without(ranking: Ranking, flagged: Container[Config]) -> Ranking:
    """Of those whose quality is not flagged, the best are those that no other of them is significantly ahead of: one
    that only a flagged one beats may be the best of them."""
    kept = tuple(
        entry
        for entry in ranking.entries
        if entry.config not in flagged or entry.config == ranking.baseline
    )
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


def _fastest_but_flagged(found: _Found) -> Iterator[Phrase]:
    """Name what would be the fastest, and why it is not the choice."""
    for config, why in found.flagged.items():
        if won := [ranking for ranking in found.compared if config in _ahead(ranking)]:
            yield say(
                found.name(config),
                " is the fastest ",
                _on(won),
                f", but its quality is flagged: {why}.",
            )


def _undecided(found: _Found, decided: Container[str]) -> Iterator[Phrase]:
    """Say what is known of the workloads without a choice."""
    compared: list[Ranking] = []
    for ranking in found.answered:
        if len(ranking.entries) == 1:
            yield say(
                "Only ",
                found.name(ranking.entries[0].config),
                " has a result ",
                _on([ranking]),
                ".",
            )
        elif ranking.workload not in decided and ranking.baseline is None:
            yield say(
                "The baseline has no result ", _on([ranking]), ", and no other is the fastest."
            )
        elif ranking.workload not in decided:
            compared.append(ranking)
    if compared:
        who = "No config without a flag" if found.flagged else "No config"
        yield say(who, " is significantly faster than the baseline ", _on(compared), ".")


def _who_looks_faster(found: _Found) -> Iterator[Phrase]:
    """Say who is ahead so far by more than the interval, and how many starts a decision needs."""
    for ranking in found.compared[:MAX_NAMED]:
        first = ranking.entries[0]
        ratio = first.ratio_to_baseline
        if ranking.baseline is not None and ratio is not None and ratio.is_above(1):
            gain = _gain(found, ranking, first.config)
            yield say(
                found.name(first.config),
                " looks faster, not yet decided: ",
                gain,
                " ",
                _on([ranking]),
                ".",
            )
    estimates = [point.metrics.get(found.summary.primary_metric) for point in found.summary.points]
    starts = max(
        known.basis.starts for known in estimates if known is not None and known.basis is not None
    )
    if starts < FEWEST_BLOCKS:
        yield say(f"A decision needs {FEWEST_BLOCKS} starts of each config; there are {starts}.")


def _verdict(found: _Found, choices: Sequence[_Choice], chosen: Sequence[Config]) -> Phrase:
    """Say what to use on each workload, and whether its quality is known."""
    parts = [_use(found, choice) for choice in choices]
    caveat = _quality_caveat(found, chosen)
    return joined([*parts, say(caveat, ".")] if caveat else parts, " ")


def _use(found: _Found, choice: _Choice) -> Phrase:
    """`Use a or b (undecided between them) on one.`; of a single choice for all workloads, without the last words."""
    head = "Use " if choice.is_sure else NOT_CONFIRMED
    if choice.configs == (choice.rankings[0].baseline,):
        head = "Keep the baseline "
    open_against: list[Words] = ["between them"] if len(choice.configs) > 1 else []
    if choice.rivals:
        open_against.append(say("against ", listing(found.names(choice.rivals), most=MAX_NAMED)))
    undecided = say(" (undecided ", listing(open_against), ")") if open_against else ()
    where = () if len(choice.rankings) == len(found.answered) else say(" ", _on(choice.rankings))
    return say(head, listing(found.names(choice.configs), "or"), undecided, where, ".")


def _is_sure(ranking: Ranking, config: Config) -> bool:
    """Whether the interval that is quoted excludes 1: a claim stays once it is made, whatever later blocks show."""
    entry = ranked_entry(ranking, config)
    if ranking.baseline in (None, config) or entry is None:
        return True
    return entry.ratio_to_baseline is not None and entry.ratio_to_baseline.is_above(1)


def _quality_caveat(found: _Found, chosen: Sequence[Config]) -> Phrase:
    """Return `Its quality was not measured`, or that it is undecided. Empty if it is known of all.

    The model that others are compared with has lost nothing, and of random weights the report speaks before all else.
    """
    rows = found.summary.quality
    fine = {row.config for row in rows if row.is_known}
    fine |= {own.config for own in found.summary.configs if own.is_reference or own.random_weights}
    chosen = [
        config for config in chosen if config != found.summary.baseline
    ]  # to keep it loses nothing
    unknown = [config for config in chosen if config not in fine]
    if not unknown:
        open_ones = {row.config for row in rows if row.state is QualityState.UNDECIDED}
        undecided = [config for config in chosen if config in open_ones]
        return (
            say("The quality of ", listing(found.names(undecided)), " is undecided")
            if undecided
            else ()
        )
    whose = say("Its quality" if len(chosen) == 1 else "Their quality")
    if len(unknown) < len(chosen):
        whose = say("The quality of ", listing(found.names(unknown)))
    return say(whose, " is unknown" if rows or found.summary.imported_from else " was not measured")


def _cautions(found: _Found, choice: _Choice) -> Iterator[Phrase]:
    """Say where a choice does not always answer, or not in the time that the study promises."""
    for ranking in choice.rankings:
        points = found.summary.points_of(ranking.workload)
        point = next(point for point in points if point.point.config == choice.configs[0])
        failed = sum(run.outcome not in (Outcome.OK, *NOT_THE_ENGINES) for run in point.runs)
        if failed:
            yield say(
                f"Caution: {failed} of its {len(point.runs)} trials on ",
                Name(ranking.workload),
                " failed.",
            )
        if missed := [
            objective for objective in point.objectives if objective.verdict is Verdict.MISSED
        ]:
            where = say(" on ", Name(ranking.workload), "; ", Name("bitbench recommend --slo"))
            yield say(
                "Caution: it misses ",
                objectives_in_words(missed),
                where,
                " chooses among those that meet such limits.",
            )


def _to_measure_quality(found: _Found, chosen: Sequence[Config]) -> Iterator[Phrase]:
    if (
        not found.summary.quality
        and not found.summary.imported_from
        and _quality_caveat(found, chosen)
    ):
        yield say(
            "To measure quality, add ",
            Name("quality: {}"),
            " to the study and run it into a new folder.",
        )


def _gains(found: _Found, choice: _Choice, *, is_named: bool) -> Iterator[Phrase]:
    """Quote the ratio of the first config to the baseline on each workload of a choice."""
    best = choice.configs[0]
    ratios = [
        ranking
        for ranking in choice.rankings
        if ranked_ratio_to_baseline(ranking, best) is not None
    ]
    if not ratios:
        return
    first, *more = ratios
    parts: list[Words] = [say(_gain(found, first, best), " ", _on([first]))]
    parts += [
        say(ranked_ratio_to_baseline(ranking, best), " ", _on([ranking]))
        for ranking in more[: MAX_NAMED - 1]
    ]
    if len(ratios) > MAX_NAMED:
        parts.append(plural(len(ratios) - MAX_NAMED, "more workload"))
    yield say(say(found.name(best), ": ") if is_named else (), listing(parts), ".")


def _on_same_engine(found: _Found, choice: _Choice) -> Iterator[Phrase]:
    """Tell what quantization alone gains, if the baseline runs on another engine."""
    ranking, best = choice.rankings[0], choice.configs[0]
    entry = ranked_entry(ranking, best)
    if entry is not None and entry.same_engine is not None:
        other = say("the unquantized ", found.name(entry.same_engine.unquantized))
        than = ratio_meaning(found.summary.definitions[ranking.metric], other)
        ratio = times(entry.same_engine.ratio)
        yield say(
            "On the same engine, ",
            found.name(best),
            " has ",
            ratio,
            " ",
            than,
            " ",
            _on([ranking]),
            ".",
        )


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


def _on(some: Sequence[Ranking]) -> Phrase:
    return say("on ", listing(name_phrases(ranking.workload for ranking in some), most=MAX_NAMED))

"""The first answer of a report: what to use on each workload, and how sure that is."""

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
from bitbench.feature import Offer, ReportPlace, handle_feature_errors, report_parts
from bitbench.records.trial import NOT_THE_ENGINES, Outcome
from bitbench.reports.document.model import Name, Phrase, Unit
from bitbench.reports.document.numbers import format_percent, make_number, make_ratio
from bitbench.reports.document.words import (
    MAX_NAME,
    Words,
    describe_ratio,
    format_count,
    format_list,
    format_names,
    join_phrases,
    list_names,
    say,
    strong,
)
from bitbench.reports.labels import CHOSEN, FLAGGED, Labels
from bitbench.reports.sections.ranked import (
    find_ranked_entry,
    find_ratio_to_baseline,
    format_objectives,
    list_possible_bests,
)
from bitbench.study.plan import Config
from bitbench.study.study import FEWEST_BLOCKS

MAX_NAMED = 4  # names in a sentence
NOT_CONFIRMED = "Leading, not confirmed: "


@dataclass(frozen=True)
class Lead:
    """An answer: a verdict of a few words, reasons in sentences, and the recommended configs."""

    verdict: Phrase
    reasons: tuple[Phrase, ...]
    chosen: tuple[Config, ...] = ()

    @property
    def headline(self) -> Phrase:
        """The verdict and the first reason, to be read next to a chart."""
        return join_phrases([strong(self.verdict), *self.reasons[:1]], " ")

    @property
    def more(self) -> tuple[Phrase, ...]:
        return self.reasons[1:]

    @property
    def phrase(self) -> Phrase:
        return join_phrases([strong(self.verdict), *self.reasons], " ")


class _Results:
    """The rankings of a summary, and the configs whose quality is flagged."""

    def __init__(self, summary: StudySummary) -> None:
        self.summary = summary
        self.answered = [ranking for ranking in summary.rankings if ranking.entries]
        # A config with the only result cannot be ahead of another.
        self.compared = [ranking for ranking in self.answered if len(ranking.entries) > 1]
        self.flagged = {row.config: row.reason for row in summary.quality if row.flagged}
        self._labels = Labels.of(summary, MAX_NAME)

    def name(self, config: Config) -> Name:
        return Name(self._labels[config])

    def names(self, configs: Sequence[Config]) -> list[Phrase]:
        return list_names(map(self._labels.__getitem__, configs))


@dataclass(frozen=True)
class _Choice:
    """The configs to use on some workloads.

    `rivals` may be as fast, but no test shows that they gain anything.
    """

    configs: tuple[Config, ...]
    rivals: tuple[Config, ...]
    is_sure: bool
    rankings: list[Ranking]


def find_lead(summary: StudySummary) -> Lead | None:
    """Return what to use on each workload; None if there is nothing to choose between.

    A choice may be the best on its workload and is significantly faster than the baseline there.
    A config with flagged quality is listed but not recommended.
    """
    if not summary.study.workloads:
        leads = iter_feature_parts(summary, "lead")
        return next(filter(None, leads), None)
    results = _Results(summary)
    if not results.answered:
        return Lead(say("No answer:"), (say("no config has a result."),))
    if not results.compared:
        return None
    counts = [ranking.starts_needed for ranking in results.compared]
    needed = [count for count in counts if count is not None]
    if len(needed) == len(counts):
        why = (
            "The next start may differ as much as two configs do; a decision needs "
            f"{max(needed)} starts of each."
        )
        return Lead(say("No ranking: one start."), (say(why),))
    choices = _list_choices(results)
    if choices:
        return _make_recommendation(results, choices)
    flagged = list(_iter_flagged(results))
    verdict = say("Undecided: speed alone gives no reason to change.")
    if flagged:
        verdict = flagged.pop(0)
    return Lead(verdict, (*_iter_undecided(results, ()), *flagged, *_iter_leading(results)))


def _make_recommendation(results: _Results, choices: Sequence[_Choice]) -> Lead:
    """Return the recommendation: gains, undecided workloads, flagged configs, then cautions."""
    configs: list[Config] = []
    workloads: list[str] = []
    for choice in choices:
        configs += choice.configs
        workloads += [ranking.workload for ranking in choice.rankings]
    chosen = tuple(dict.fromkeys(configs))
    reasons: list[Phrase] = []
    for choice in choices:
        reasons += _iter_gains(results, choice, is_named=len(configs) > 1)
    reasons += _iter_undecided(results, workloads)
    reasons += _iter_flagged(results)
    for choice in choices:
        reasons += _iter_same_engine(results, choice)
        reasons += _iter_cautions(results, choice)
    reasons += _iter_quality_advice(results, chosen)
    return Lead(_format_verdict(results, choices, chosen), tuple(reasons), chosen)


def collect_answer_marks(summary: StudySummary, answer: Lead | None) -> dict[Config, str]:
    """Return the mark of each config whose quality is flagged, or that the answer chooses."""
    marks = {row.config: FLAGGED for row in summary.quality if row.flagged}
    chosen = answer.chosen if answer else ()
    return marks | dict.fromkeys(chosen, CHOSEN)


def iter_feature_parts(
    summary: StudySummary,
    kind: Literal["section", "sentences", "lead"],
    position: ReportPlace | None = None,
) -> Iterator[Any]:
    """Yield what features report about their own parts of a summary.

    A `position` of the report selects the parts that belong there. None selects all parts.
    """
    for part, feature in report_parts():
        target = getattr(part, kind)
        if target is None or part.name not in summary.parts:
            continue
        if position not in (None, part.place):
            continue
        with handle_feature_errors(feature):
            content = Offer(feature, target).load()(summary.parts[part.name], summary)
            if kind == "sentences":
                yield from content
            else:
                yield content


def _list_choices(results: _Results) -> list[_Choice]:
    """Group the workloads by what is best there, among the configs whose quality is not flagged."""
    groups: dict[object, _Choice] = {}
    for ranking in results.compared:
        sound = _exclude_flagged(ranking, results.flagged)
        configs = tuple(config for config in _list_ahead(sound) if config not in results.flagged)
        if not configs:
            continue
        decided = {*configs, ranking.baseline}
        bests = list_possible_bests(sound)
        rivals = tuple(config for config in bests if config not in decided)
        choice = _Choice(configs, rivals, _is_confirmed(ranking, configs[0]), [])
        key = (frozenset(configs), frozenset(rivals), choice.is_sure)
        groups.setdefault(key, choice).rankings.append(ranking)
    return list(groups.values())


def _list_ahead(ranking: Ranking) -> list[Config]:
    """Return the configs that may be the best and are significantly faster than the baseline.

    If only the baseline may be the best, return it. Without a baseline, return the configs that
    are faster than at least one other.
    """
    top = list_possible_bests(ranking)
    if ranking.baseline is None:
        return top if len(top) < len(ranking.entries) else []
    if top == [ranking.baseline]:
        return top
    faster = set()
    for entry in ranking.entries:
        if entry.against_baseline is AgainstBaseline.FASTER:
            faster.add(entry.config)
    return [config for config in top if config in faster]


def _exclude_flagged(ranking: Ranking, flagged: Container[Config]) -> Ranking:
    """Return the ranking without flagged configs, except for the baseline.

    The best of the rest are those that no other of them is significantly ahead of. A config that
    only a flagged one beats may be the best of the rest.
    """
    kept = []
    for entry in ranking.entries:
        if entry.config not in flagged or entry.config == ranking.baseline:
            kept.append(entry)
    if len(kept) == len(ranking.entries):
        return ranking
    top = list_possible_bests(ranking)
    bests = [entry.config for entry in kept if entry.config in top]
    if len(bests) < len(top):
        bests = [entry.config for rank, entry in enumerate(kept) if _has_lead(entry, kept[:rank])]
    return ranking.model_copy(update={"entries": tuple(kept), "possible_bests": tuple(bests)})


def _has_lead(entry: RankingEntry, better: Sequence[RankingEntry]) -> bool:
    """Return whether no entry with a better mean is significantly ahead.

    An entry with a single trial is not ranked: it neither leads nor is ahead.
    """
    if entry.rank_low is None:
        return False
    ranked = {other.config for other in better if other.rank_low is not None}
    return ranked <= set(entry.undecided_with)


def _iter_flagged(results: _Results) -> Iterator[Phrase]:
    """Yield the configs that would be the fastest, with the reason why they are not the choice."""
    for config, why in results.flagged.items():
        won = [ranking for ranking in results.compared if config in _list_ahead(ranking)]
        if won:
            flag = f", but its quality is flagged: {why}."
            yield say(results.name(config), " is the fastest ", _format_workloads(won), flag)


def _iter_undecided(results: _Results, decided: Container[str]) -> Iterator[Phrase]:
    """Yield what is known about the workloads without a choice."""
    compared = []
    for ranking in results.answered:
        if len(ranking.entries) == 1:
            only = results.name(ranking.entries[0].config)
            yield say("Only ", only, " has a result ", _format_workloads([ranking]), ".")
        elif ranking.workload in decided:
            continue
        elif ranking.baseline is None:
            end = ", and no other is the fastest."
            yield say("The baseline has no result ", _format_workloads([ranking]), end)
        else:
            compared.append(ranking)
    if compared:
        subject = "No config without a flag" if results.flagged else "No config"
        yield say(
            subject, " is significantly faster than the baseline ", _format_workloads(compared), "."
        )


def _iter_leading(results: _Results) -> Iterator[Phrase]:
    """Yield the configs that are ahead but not ranked yet, and how many starts a decision needs."""
    for ranking in results.compared[:MAX_NAMED]:
        first = ranking.entries[0]
        ratio = first.ratio_to_baseline
        if ranking.baseline is not None and ratio is not None and ratio.is_above(1):
            yield say(
                results.name(first.config),
                " looks faster, not yet decided: ",
                _describe_gain(results, ranking, first.config),
                " ",
                _format_workloads([ranking]),
                ".",
            )
    counts = []
    for point in results.summary.points:
        estimate = point.metrics.get(results.summary.primary_metric)
        if estimate is not None and estimate.basis is not None:
            counts.append(estimate.basis.starts)
    starts = max(counts)
    if starts < FEWEST_BLOCKS:
        yield say(f"A decision needs {FEWEST_BLOCKS} starts of each config; there are {starts}.")


def _format_verdict(
    results: _Results, choices: Sequence[_Choice], chosen: Sequence[Config]
) -> Phrase:
    """Return what to use on each workload, and whether its quality is known."""
    parts = [_describe_use(results, choice) for choice in choices]
    caveat = _describe_quality_caveat(results, chosen)
    if caveat:
        parts.append(say(caveat, "."))
    return join_phrases(parts, " ")


def _describe_use(results: _Results, choice: _Choice) -> Phrase:
    """Return `Use a or b (undecided between them) on one.`

    A single choice for all workloads does not list them.
    """
    head = "Use " if choice.is_sure else NOT_CONFIRMED
    if choice.configs == (choice.rankings[0].baseline,):
        head = "Keep the baseline "
    opponents: list[Words] = []
    if len(choice.configs) > 1:
        opponents.append("between them")
    if choice.rivals:
        opponents.append(say("against ", format_list(results.names(choice.rivals), most=MAX_NAMED)))
    parts = [say(head, format_list(results.names(choice.configs), "or"))]
    if opponents:
        parts.append(say(" (undecided ", format_list(opponents), ")"))
    if len(choice.rankings) < len(results.answered):
        parts.append(say(" ", _format_workloads(choice.rankings)))
    return say(*parts, ".")


def _is_confirmed(ranking: Ranking, config: Config) -> bool:
    """Return whether the quoted interval excludes 1.

    Later blocks may widen it, although a claim stays once it is made.
    """
    entry = find_ranked_entry(ranking, config)
    if ranking.baseline in (None, config) or entry is None:
        return True
    return entry.ratio_to_baseline is not None and entry.ratio_to_baseline.is_above(1)


def _describe_quality_caveat(results: _Results, chosen: Sequence[Config]) -> Phrase:
    """Return `Its quality was not measured`, or that it is undecided. Empty if it is known of all.

    The baseline of quality has lost nothing, so its quality counts as known. So does that of
    random weights, about which the report warns before all else.
    """
    rows = results.summary.quality
    fine = {row.config for row in rows if row.is_known}
    for config in results.summary.configs:
        if config.is_reference or config.random_weights:
            fine.add(config.config)
    # To keep the baseline loses nothing.
    chosen = [config for config in chosen if config != results.summary.baseline]
    unknown = [config for config in chosen if config not in fine]
    if not unknown:
        open_configs = {row.config for row in rows if row.state is QualityState.UNDECIDED}
        undecided = [config for config in chosen if config in open_configs]
        if not undecided:
            return ()
        return say("The quality of ", format_list(results.names(undecided)), " is undecided")
    subject = say("Its quality")
    if len(unknown) < len(chosen):
        subject = say("The quality of ", format_list(results.names(unknown)))
    elif len(chosen) > 1:
        subject = say("Their quality")
    if rows or results.summary.imported_from:
        return say(subject, " is unknown")
    return say(subject, " was not measured")


def _iter_cautions(results: _Results, choice: _Choice) -> Iterator[Phrase]:
    """Yield the workloads on which trials of a choice failed or missed the study's objectives."""
    for ranking in choice.rankings:
        workload = Name(ranking.workload)
        points = results.summary.list_points(ranking.workload)
        point = next(point for point in points if point.point.config == choice.configs[0])
        failed = sum(run.outcome not in (Outcome.OK, *NOT_THE_ENGINES) for run in point.runs)
        if failed:
            count = f"Caution: {failed} of its {len(point.runs)} trials on "
            yield say(count, workload, " failed.")
        findings = point.objectives
        missed = [finding for finding in findings if finding.verdict is Verdict.MISSED]
        if missed:
            yield say(
                "Caution: it misses ",
                format_objectives(missed),
                " on ",
                workload,
                "; ",
                Name("bitbench recommend --slo"),
                " chooses among those that meet such limits.",
            )


def _iter_quality_advice(results: _Results, chosen: Sequence[Config]) -> Iterator[Phrase]:
    """Yield how to measure the quality of the choice, if the study did not."""
    if results.summary.quality or results.summary.imported_from:
        return
    if _describe_quality_caveat(results, chosen):
        yield say(
            "To measure quality, add ",
            Name("quality: {}"),
            " to the study and run it into a new folder.",
        )


def _iter_gains(results: _Results, choice: _Choice, *, is_named: bool) -> Iterator[Phrase]:
    """Yield the ratios of the first config to the baseline on each workload of a choice."""
    best = choice.configs[0]
    ratios = []
    for ranking in choice.rankings:
        ratio = find_ratio_to_baseline(ranking, best)
        if ratio is not None:
            ratios.append((ranking, ratio))
    if not ratios:
        return
    first = ratios[0][0]
    parts: list[Words] = [
        say(_describe_gain(results, first, best), " ", _format_workloads([first]))
    ]
    for ranking, ratio in ratios[1:MAX_NAMED]:
        parts.append(say(ratio, " ", _format_workloads([ranking])))
    if len(ratios) > MAX_NAMED:
        parts.append(format_count(len(ratios) - MAX_NAMED, "more workload"))
    subject = say(results.name(best), ": ") if is_named else ()
    yield say(subject, format_list(parts), ".")


def _iter_same_engine(results: _Results, choice: _Choice) -> Iterator[Phrase]:
    """Yield the gain of quantization alone, if the baseline runs on another engine."""
    ranking = choice.rankings[0]
    best = choice.configs[0]
    entry = find_ranked_entry(ranking, best)
    if entry is not None and entry.same_engine is not None:
        other = say("the unquantized ", results.name(entry.same_engine.unquantized))
        yield say(
            "On the same engine, ",
            results.name(best),
            " has ",
            make_ratio(entry.same_engine.ratio),
            " ",
            describe_ratio(results.summary.definitions[ranking.metric], other),
            " ",
            _format_workloads([ranking]),
            ".",
        )


def _describe_gain(results: _Results, ranking: Ranking, best: Config) -> Phrase:
    """Return the gain over the baseline: `1.31× (95 % CI 1.27× to 1.36×) the throughput of a`."""
    entry = find_ranked_entry(ranking, best)
    assert entry is not None
    ratio = entry.ratio_to_baseline
    assert ratio is not None
    assert ranking.baseline is not None
    value = say(make_number(ratio.value, Unit.RATIO))
    if ratio.interval:
        confidence = format_percent(results.summary.study.measure.confidence)
        ends = [make_number(end, Unit.RATIO) for end in ratio.interval]
        value = say(value, f" ({confidence} CI ", format_list(ends, "to"), ")")
    baseline = results.name(ranking.baseline)
    return say(value, " ", describe_ratio(results.summary.definitions[ranking.metric], baseline))


def _format_workloads(rankings: Sequence[Ranking]) -> Phrase:
    workloads = (ranking.workload for ranking in rankings)
    return say("on ", format_names(workloads, most=MAX_NAMED))

"""What a search found: the command to run, what a fresh study says of it, and what became of everything else."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from bitbench.analysis.results.estimate import Finding, Verdict
from bitbench.analysis.results.recommendation import QUALITY_LOSS
from bitbench.features.tune.types import Confirmed, Fate, Goal, RaceEnd, Tuning
from bitbench.reports.answers.recommend import deployment_section, recommendation_goal_phrase, recommendation_limit_text
from bitbench.reports.document.model import (
    Document,
    Mark,
    Name,
    Paragraph,
    Phrase,
    Section,
    Table,
    Unit,
)
from bitbench.reports.document.numbers import (
    MARKS,
    ROUGH,
    estimated,
    finding_quantity,
    number,
    percent,
    quantity,
    quantity_unit,
    times,
)
from bitbench.reports.document.words import (
    MAX_NAME,
    bullets,
    joined,
    listing,
    name_phrases,
    number_column,
    paragraph,
    plain_words,
    plural,
    ratio_column,
    ratio_meaning,
    say,
    strong,
    table,
    words_column,
)
from bitbench.reports.labels import Labels
from bitbench.study.plan import Config
from bitbench.util.units import show_duration

MAX_CAUSE = 160
_ADVICE = say(
    " To decide about quality, give ", Name("quality"), " more ", Name("windows"), " or a longer ", Name("corpus"), "."
)
FEW = 3  # names in a list that the table repeats


def tuning_document(found: Tuning) -> Document:
    return Document(
        say("What to run: ", found.name),
        (
            paragraph("Asked for: ", _asked(found), f", in {show_duration(found.budget_s)}."),
            Paragraph(_searched(found)),
            Paragraph(_verdict(found)),
        ),
        (_section(found), *([deployment_section("it", found.deploy)] if found.deploy else []), *_what_to_know(found)),
    )


def _asked(found: Tuning) -> Phrase:
    most = "highest" if found.primary_metric.higher_is_better else "lowest"
    goal = "the lowest cost of output tokens" if found.goal is Goal.COST else f"the {most} {found.primary_metric.name}"
    return say(recommendation_goal_phrase(goal, found.limits, "peak memory"), " on ", Name(found.workload))


def _searched(found: Tuning) -> Phrase:
    all_ = len(found.tried) == found.space
    drawn = "" if all_ else f" of {found.space:,}, drawn at random since the budget pays for no more,"
    outcome = say(f"Searched {plural(len(found.tried), 'config')}{drawn} in {show_duration(found.search_s)}.")
    if found.chosen is None or found.shortfall is None:
        return outcome
    confidence = percent(found.confidence)
    if found.shortfall == 0:
        return say(outcome, f" Every other one is worse than the best, or ruled out, with {confidence} confidence.")
    left = [tried for tried in found.tried if tried.fate is Fate.LEFT]
    tied = (
        say(" (", listing(name_phrases(tried.config.name for tried in left), most=FEW), ")") if len(left) <= FEW else ""
    )
    may = f" {plural(len(left), 'other')} may be as good or better"
    bound = f", with {confidence} confidence by at most {percent(found.shortfall)}."
    return say(outcome, may, tied, bound)


def _verdict(found: Tuning) -> Phrase:
    if found.chosen is None:
        return _none_chosen(found)
    if found.confirmed is None:
        return say(_kept(found, found.chosen), _limits(found))
    return say(_confirmed(found, found.confirmed), _limits(found))


def _kept(found: Tuning, baseline: Config) -> Phrase:
    keep, doubt = say("Keep the baseline ", Name(baseline.name)), _doubt(found)
    if found.shortfall is not None:
        return say(strong(keep, doubt, "."), " It is the best of what was searched, so there is no gain to confirm.")
    why = " Some that may be better have too few results beside it to be compared; the same command measures on."
    return say(strong("Inconclusive. ", keep, " for now", doubt, "."), why)


def _doubt(found: Tuning) -> Phrase:
    """Said with the verdict, since it is no answer without it."""
    open_ = [finding.name for finding in _chosen_findings(found) if finding.verdict is Verdict.INCONCLUSIVE]
    if not open_:
        return ()
    limits = "limit" if len(open_) == 1 else "limits"
    return say(f", but whether it meets the {limits} on ", listing(open_), " is inconclusive")


def _confirmed(found: Tuning, confirmed: Confirmed) -> Phrase:
    assert found.chosen is not None
    chosen, baseline = Name(found.chosen.name), Name(found.baseline.name)
    ratio = times(confirmed.ratio)
    starts = f" ({plural(confirmed.starts, 'fresh start')} × {plural(confirmed.rounds, 'round')} of each)"
    figure = estimated(confirmed.figure, found.primary_metric)
    if figure is None:
        verdict = strong("Nothing is confirmed: the best of the search, ", chosen, ", has no result in a fresh study.")
        return say(verdict, " Why not: ", Name(f"{confirmed.folder}/report/index.html"), ".")
    beside = say(", ", ratio, " ", ratio_meaning(found.primary_metric, say("the baseline ", baseline)), starts)
    if ratio is None:
        beside = say("; the baseline ", baseline, " has too few results there to compare it with")
    what = say(f"its {found.primary_metric.name} is ", figure, beside, ".")
    if confirmed.verdict is Verdict.MISSED:
        verdict = strong("No command is certain to meet the limits: the best of the search, ", chosen, ", misses them.")
        return say(verdict, " In a fresh study, ", what)
    if confirmed.is_gain:
        return say(strong("Use ", chosen, _doubt(found), "."), " In a fresh study, ", what, _cost(confirmed))
    said = strong("The gain of ", chosen, " is not confirmed.")
    until = " With more budget, into a new folder, it may be; until then the baseline is as good." if ratio else ""
    return say(said, " In a fresh study, ", what, until)


def _cost(confirmed: Confirmed) -> Phrase:
    if confirmed.cost is None:
        return ()
    costs = [quantity(cost, Unit.NONE, digits=ROUGH) for cost in (confirmed.cost, confirmed.baseline_cost)]
    before = say(", with the baseline ", costs[1]) if costs[1] else ()
    return say(" A million output tokens cost ", costs[0], before, ".")


def _limits(found: Tuning) -> Phrase:
    findings = _chosen_findings(found)
    if not findings:
        return ()
    said = {
        verdict: joined(
            [_held(finding, _basis(found, finding)) for finding in findings if finding.verdict is verdict], "; "
        )
        for verdict in Verdict
    }
    met = say(" It meets ", said[Verdict.MET], ".") if said[Verdict.MET] else ()
    missed = say(" It misses ", said[Verdict.MISSED], ".") if said[Verdict.MISSED] else ()
    open_ = say(" Inconclusive: ", said[Verdict.INCONCLUSIVE], ".") if said[Verdict.INCONCLUSIVE] else ()
    is_open = any(finding.name == QUALITY_LOSS and finding.verdict is Verdict.INCONCLUSIVE for finding in findings)
    return say(met, missed, open_, _ADVICE if is_open else ())


def _basis(found: Tuning, finding: Finding) -> str:
    """Which text a loss of quality was found on."""
    if finding.name != QUALITY_LOSS or finding.value is None or found.confirmed is None:
        return ""
    fresh = found.confirmed.windows
    return "on the search's own windows" if fresh is None else f"on {plural(fresh, 'window')} of fresh text"


def _chosen_findings(found: Tuning) -> tuple[Finding, ...]:
    if found.confirmed is not None:
        return found.confirmed.findings
    return next((tried.findings for tried in found.tried if tried.config == found.chosen), ())


def _held(finding: Finding, basis: str = "") -> Phrase:
    """`ttft 24 [23, 25] ms against 100 ms`"""
    why = f" ({finding.reason})" if finding.reason else ""
    if finding.value is None:
        return say(f"{finding.name}{why}")
    return say(
        f"{finding.name} ",
        finding_quantity(finding, basis),
        f" against {recommendation_limit_text(finding.unit, finding.limit)}{why}",
    )


def _none_chosen(found: Tuning) -> Phrase:
    if not any(tried.figure for tried in found.tried):
        return strong("No config has a result.")
    if found.end is RaceEnd.NONE_MEETS:
        return strong("No config meets the limits.")
    return say(
        strong("Inconclusive: no config is known to meet the limits."),
        " More budget, or more requests per trial, would tell.",
    )


def _section(found: Tuning) -> Section:
    labels = Labels((tried.config for tried in found.tried), MAX_NAME)
    shared = [paragraph(labels.shared)] if labels.shared else []
    reasons = bullets((*_passed_over(found), *_ruled_out(found), *_refused(found)))
    return Section(say("What was searched"), (*shared, _table(found, labels), *reasons), in_terminal=True)


def _table(found: Tuning, labels: Labels) -> Table:
    return table(
        found.tried,
        words_column("Outcome", lambda tried: tried.fate.value),
        words_column("Config", lambda tried: Name(labels[tried.config])),
        ratio_column(
            "vs. baseline",
            lambda tried: "baseline" if tried.config == found.baseline else times(tried.ratio_to_baseline),
        ),
        number_column(
            found.primary_metric.label,
            quantity_unit(found.primary_metric),
            lambda tried: estimated(tried.figure, found.primary_metric),
        ),
        number_column("Starts", Unit.COUNT, lambda tried: number(tried.starts, Unit.COUNT)),
        words_column(
            "Limits",
            lambda tried: ", ".join(f"{finding.name} {MARKS[finding.verdict]}" for finding in tried.findings),
            shown_from=100,
        ),
        mark=lambda tried: Mark.BEST if tried.config == found.chosen else None,
    )


def _passed_over(found: Tuning) -> Iterator[Phrase]:
    """Better than the chosen one by its figure, and why it was not chosen all the same."""
    chosen = next((tried for tried in found.tried if tried.config == found.chosen), None)
    if chosen is None or chosen.figure is None:
        return
    way = 1 if found.primary_metric.higher_is_better else -1
    reasons: dict[Phrase, list[str]] = {}
    for tried in found.tried:
        unmet = [_held(finding) for finding in tried.findings if _seems_missed(finding)]
        if tried.fate is Fate.LEFT and unmet and tried.figure and way * tried.figure.value > way * chosen.figure.value:
            reasons.setdefault(joined(unmet, "; "), []).append(tried.config.name)
    yield from _by_reason("Not chosen, though it may be better: ", reasons)


def _seems_missed(finding: Finding) -> bool:
    """Its interval may contain the limit; its figure is beyond it, or unknown."""
    return finding.verdict is not Verdict.MET and (finding.value is None or finding.value > finding.limit)


def _ruled_out(found: Tuning) -> Iterator[Phrase]:
    """One line per reason: several may share one."""
    reasons: dict[Phrase, list[str]] = {}
    for tried in found.tried:
        if tried.fate is Fate.NO_RESULT:
            reason = say(f"no result ({plain_words(tried.reason, MAX_CAUSE)})")
        elif tried.fate is Fate.RULED_OUT:
            broken = [_held(finding) for finding in tried.findings if finding.verdict is Verdict.MISSED]
            reason = joined([*([tried.reason] if tried.reason else []), *broken], "; ")
        else:
            continue
        reasons.setdefault(reason, []).append(tried.config.name)
    yield from _by_reason("Ruled out: ", reasons)


def _by_reason(head: str, reasons: Mapping[Phrase, Sequence[str]]) -> Iterator[Phrase]:
    for reason, configs in reasons.items():
        yield say(head, listing(name_phrases(configs), most=FEW), ": ", reason, ".")


def _refused(found: Tuning) -> Iterator[Phrase]:
    reasons = Counter(refusal.reason for refusal in found.refused)
    for reason, configs in reasons.items():
        yield say(f"Not applicable ({plural(configs, 'config')}): {plain_words(reason, MAX_CAUSE)}")


def _what_to_know(found: Tuning) -> tuple[Section, ...]:
    notes: list[Phrase] = []
    if found.confirmed is not None:
        said = "The figures of the search chose the best, so they flatter it; those of the verdict are from a fresh "
        notes.append(say(f"{said}study of it and the baseline."))
    if found.goal is Goal.COST:
        notes.append(say("On one machine the lowest cost per token is the highest throughput."))
    took = f"Took {show_duration(found.search_s + found.confirmation_s)} of {show_duration(found.budget_s)}."
    folders = [found.search_folder, *([found.confirmed.folder] if found.confirmed else [])]
    notes.append(
        say(took, " Reports: ", listing(name_phrases(f"{folder}/report/index.html" for folder in folders)), ".")
    )
    return (Section(say("What to know"), bullets(notes), in_terminal=True),)

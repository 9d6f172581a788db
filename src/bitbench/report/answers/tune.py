"""What a search found: the command to run, what a fresh study says of it, and what became of everything else."""

from collections import Counter
from collections.abc import Iterator

from bitbench.core.asked.tune import Goal
from bitbench.core.found.recommendation import Cost, Finding, Standing
from bitbench.core.found.tuning import Confirmed, Fate, RaceEnd, Tried, Tuning
from bitbench.ground.units import show_duration
from bitbench.report.answers.recommend import MARKS, asked_for, finding_quantity, limit_text
from bitbench.report.document.model import (
    CodeBlock,
    Document,
    Mark,
    Name,
    Paragraph,
    Phrase,
    Quantity,
    Section,
    Table,
    Unit,
)
from bitbench.report.document.numbers import percent
from bitbench.report.document.tables import number_column, ratio_column, table, words_column
from bitbench.report.document.text import MAX_NAME, plain
from bitbench.report.document.words import bullets, joined, listing, names, paragraph, plural, say, strong
from bitbench.report.labels import Labels
from bitbench.report.quantities import ROUGH, estimated, number, times, unit_of

MAX_CAUSE = 160
FEW = 3  # names in a list that the table repeats


def tuning_document(found: Tuning) -> Document:
    return Document(
        say("What to run: ", found.name),
        (
            paragraph("Asked for: ", _asked(found), f", in {show_duration(found.budget_s)}."),
            Paragraph(_searched(found)),
            Paragraph(_verdict(found)),
        ),
        (_section(found), *_deployment(found), *_what_to_know(found)),
    )


def _asked(found: Tuning) -> Phrase:
    goal = "the lowest cost of output tokens" if found.goal is Goal.COST else _goal_of(found)
    return say(asked_for(goal, found.limits, "peak memory"), " on ", Name(found.workload))


def _goal_of(found: Tuning) -> str:
    return f"the {'highest' if found.headline.higher_is_better else 'lowest'} {found.headline.name}"


def _searched(found: Tuning) -> Phrase:
    all_ = len(found.tried) == found.space
    drawn = "" if all_ else f" of {found.space:,}, drawn at random since the budget pays for no more,"
    outcome = say(f"Searched {plural(len(found.tried), 'contender')}{drawn} in {show_duration(found.search_s)}.")
    if found.chosen is None or found.shortfall is None:
        return outcome
    confidence = percent(found.confidence)
    if found.shortfall == 0:
        return say(outcome, f" Every other one is worse than the best, or ruled out, with {confidence} confidence.")
    left = [one for one in found.tried if one.fate is Fate.LEFT]
    tied = say(" (", listing(names(one.contender.name for one in left), most=FEW), ")") if len(left) <= FEW else ""
    may = f" {plural(len(left), 'other')} may be as good or better"
    bound = f", with {confidence} confidence by at most {percent(found.shortfall)}."
    return say(outcome, may, tied, bound)


def _verdict(found: Tuning) -> Phrase:
    if found.chosen is None:
        return _none_chosen(found)
    if found.confirmed is None:
        about = say(" It is the best of what was searched, so there is no gain to confirm.")
        return say(strong("Keep the baseline ", Name(found.chosen.name), "."), about, _limits(found))
    return say(_confirmed(found, found.confirmed), _limits(found))


def _confirmed(found: Tuning, confirmed: Confirmed) -> Phrase:
    assert found.chosen is not None
    chosen, baseline = Name(found.chosen.name), Name(found.baseline.name)
    ratio = times(confirmed.ratio)
    starts = f" ({plural(confirmed.starts, 'fresh start')} × {plural(confirmed.rounds, 'round')} of each)"
    figure = estimated(confirmed.figure, found.headline)
    what = say(f"its {found.headline.name} is ", figure, ", ", ratio, " that of the baseline ", baseline, starts, ".")
    if confirmed.standing is Standing.BROKEN:
        verdict = strong("No command is certain to meet the limits: the best of the search, ", chosen, ", misses them.")
        return say(verdict, " In a fresh study, ", what)
    if confirmed.is_gain:
        return say(strong("Use ", chosen, "."), " In a fresh study, ", what, _cost(confirmed))
    said = strong("The gain of ", chosen, " is not confirmed.")
    return say(said, " In a fresh study, ", what, " With more budget it may be; until then the baseline is as good.")


def _cost(confirmed: Confirmed) -> Phrase:
    if confirmed.cost is None:
        return ()
    before = say(", with the baseline ", _money(confirmed.baseline_cost)) if confirmed.baseline_cost else ()
    return say(" A million output tokens cost ", _money(confirmed.cost), before, ".")


def _money(cost: Cost) -> Quantity:
    return Quantity(cost.mean, Unit.NONE, cost.low, cost.high, digits=ROUGH)


def _limits(found: Tuning) -> Phrase:
    findings = _chosen_findings(found)
    if not findings:
        return ()
    said = {
        standing: joined([_held(one) for one in findings if one.standing is standing], "; ") for standing in Standing
    }
    met = say(" It meets ", said[Standing.MET], ".") if said[Standing.MET] else ()
    missed = say(" It misses ", said[Standing.BROKEN], ".") if said[Standing.BROKEN] else ()
    open_ = say(" Inconclusive: ", said[Standing.UNSURE], ".") if said[Standing.UNSURE] else ()
    return say(met, missed, open_)


def _chosen_findings(found: Tuning) -> tuple[Finding, ...]:
    if found.confirmed is not None:
        return found.confirmed.findings
    return next((one.findings for one in found.tried if one.contender == found.chosen), ())


def _held(finding: Finding) -> Phrase:
    """`ttft 24 [23, 25] ms against 100 ms`"""
    why = f" ({finding.reason})" if finding.reason else ""
    if finding.value is None:
        return say(f"{finding.name}{why}")
    return say(
        f"{finding.name} ", finding_quantity(finding), f" against {limit_text(finding.unit, finding.limit)}{why}"
    )


def _none_chosen(found: Tuning) -> Phrase:
    if not any(one.figure for one in found.tried):
        return strong("No contender has a result.")
    if found.end is RaceEnd.NONE_MEETS:
        return strong("No contender meets the limits.")
    return say(
        strong("Inconclusive: no contender is known to meet the limits."),
        " More budget, or more requests per trial, would tell.",
    )


def _section(found: Tuning) -> Section:
    labels = Labels((one.contender for one in found.tried), MAX_NAME)
    shared = [paragraph(labels.shared)] if labels.shared else []
    reasons = bullets((*_ruled_out(found), *_refused(found)))
    return Section(say("What was searched"), (*shared, _table(found, labels), *reasons), in_terminal=True)


def _table(found: Tuning, labels: Labels) -> Table:
    return table(
        found.tried,
        words_column("Outcome", lambda one: one.fate.value),
        words_column("Contender", lambda one: Name(labels[one.contender])),
        ratio_column(
            "vs. baseline",
            lambda one: "baseline" if one.contender == found.baseline else times(one.ratio_to_baseline),
        ),
        number_column(found.headline.label, unit_of(found.headline), lambda one: estimated(one.figure, found.headline)),
        number_column("Starts", Unit.COUNT, lambda one: number(one.starts, Unit.COUNT)),
        words_column("Limits", _marks, shown_from=100),
        mark=lambda one: Mark.BEST if one.contender == found.chosen else None,
    )


def _marks(tried: Tried) -> str:
    return ", ".join(f"{one.name} {MARKS[one.standing]}" for one in tried.findings)


def _ruled_out(found: Tuning) -> Iterator[Phrase]:
    """One line per reason: several may share one."""
    reasons: dict[Phrase, list[str]] = {}
    for one in found.tried:
        if one.fate is Fate.NO_RESULT:
            reason = say(f"no result ({plain(one.reason, MAX_CAUSE)})")
        elif one.fate is Fate.RULED_OUT:
            broken = [_held(finding) for finding in one.findings if finding.standing is Standing.BROKEN]
            reason = joined([*([one.reason] if one.reason else []), *broken], "; ")
        else:
            continue
        reasons.setdefault(reason, []).append(one.contender.name)
    for reason, contenders in reasons.items():
        yield say("Ruled out: ", listing(names(contenders), most=FEW), ": ", reason, ".")


def _refused(found: Tuning) -> Iterator[Phrase]:
    reasons = Counter(refusal.reason for refusal in found.refused)
    for reason, contenders in reasons.items():
        yield say(f"Not applicable ({plural(contenders, 'contender')}): {plain(reason, MAX_CAUSE)}")


def _deployment(found: Tuning) -> tuple[Section, ...]:
    if not found.deploy:
        return ()
    about = paragraph("As it was measured, prefix caching off; size context and concurrency for your own requests.")
    return (Section(say("To deploy it"), (about, CodeBlock(tuple(command_lines(found.deploy)))), in_terminal=True),)


def command_lines(words: tuple[str, ...]) -> list[str]:
    """A line for each option, so that it can be read and copied at any width."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(word)
    texts = [" ".join(line) for line in lines]
    return [*(f"{text} \\" for text in texts[:-1]), texts[-1]]


def _what_to_know(found: Tuning) -> tuple[Section, ...]:
    notes: list[Phrase] = [
        say(
            "The figures of the search chose the best, so they flatter it; those of the verdict are from a fresh study "
            "of it and the baseline."
        )
    ]
    if found.goal is Goal.COST:
        notes.append(say("On one machine the lowest cost per token is the highest throughput."))
    took = f"Took {show_duration(found.search_s + found.confirmation_s)} of {show_duration(found.budget_s)}."
    folders = [found.search_folder, *([found.confirmed.folder] if found.confirmed else [])]
    notes.append(say(took, " Reports: ", listing(names(f"{folder}/report/index.html" for folder in folders)), "."))
    return (Section(say("What to know"), bullets(notes), in_terminal=True),)

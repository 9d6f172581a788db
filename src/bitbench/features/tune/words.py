"""What a search found: the command to run, what a fresh study says of it, and what became of everything else."""

from collections import Counter
from collections.abc import Iterator

from bitbench.analysis.results.estimate import Finding, Verdict
from bitbench.analysis.results.recommendation import QUALITY_LOSS
from bitbench.features.tune.types import Confirmed, Fate, RaceEnd, Tuning
from bitbench.reports.answers.recommend import (
    deployment_section,
    recommendation_goal_phrase,
    recommendation_limit_text,
)
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
    estimated,
    finding_quantity,
    number,
    percent,
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
from bitbench.util.units import show_duration

MAX_CAUSE = 160
FEW = 3  # names in a list that the table repeats


def tuning_document(found: Tuning) -> Document:
    deploy = [deployment_section("it", found.deploy)] if found.deploy else []
    return Document(
        say("What to run: ", found.name),
        (
            paragraph("Asked for: ", _asked(found), f", in {show_duration(found.budget_s)}."),
            Paragraph(_searched(found)),
            Paragraph(_verdict(found)),
        ),
        (_section(found), *deploy, _what_to_know(found)),
    )


def _asked(found: Tuning) -> Phrase:
    most = "highest" if found.primary_metric.higher_is_better else "lowest"
    goal = f"the {most} {found.primary_metric.name}"
    return say(
        recommendation_goal_phrase(goal, found.limits, "peak memory"), " on ", Name(found.workload)
    )


def _searched(found: Tuning) -> Phrase:
    outcome = f"Searched {plural(len(found.tried), 'config')} in {show_duration(found.took_s)}."
    if found.chosen is None or found.shortfall is None:
        return say(outcome)
    confidence = percent(found.confidence)
    if found.shortfall == 0:
        return say(
            outcome,
            f" Every other one is worse than the best, or ruled out, with {confidence} confidence.",
        )
    left = sum(tried.fate is Fate.LEFT for tried in found.tried)
    bound = f"with {confidence} confidence by at most {percent(found.shortfall)}"
    return say(outcome, f" {plural(left, 'other')} may be as good or better, {bound}.")


def _verdict(found: Tuning) -> Phrase:
    if found.chosen is None:
        return strong(_none_chosen(found))
    chosen, is_open = Name(found.chosen.name), found.chosen_verdict is Verdict.INCONCLUSIVE
    doubt = ", but whether it meets its limits is inconclusive" if is_open else ""
    if found.confirmed is not None:
        return say(_confirmed(found, found.confirmed, chosen, doubt), _limits(found))
    if found.shortfall is None:
        head = strong("Inconclusive. Keep the baseline ", chosen, f" for now{doubt}.")
        return say(
            head,
            " Some have too few results beside it; the same command measures on.",
            _limits(found),
        )
    return say(strong("Keep the baseline ", chosen, f"{doubt}."), _limits(found))


def _none_chosen(found: Tuning) -> str:
    if not any(tried.figure for tried in found.tried):
        return "No config has a result."
    if found.end is RaceEnd.NONE_MEETS:
        return "No config meets the limits."
    return "Inconclusive: no config is known to meet the limits."


def _confirmed(found: Tuning, confirmed: Confirmed, chosen: Name, doubt: str) -> Phrase:
    if confirmed.figure is None:
        head = strong(
            "Nothing is confirmed: the best of the search, ",
            chosen,
            ", has no result in a fresh study.",
        )
        return say(head, " Why not: ", Name(f"{confirmed.folder}/report/index.html"), ".")
    if confirmed.verdict is Verdict.MISSED:
        head = strong("The best of the search, ", chosen, ", misses its limits.")
    elif confirmed.is_gain:
        head = strong("Use ", chosen, f"{doubt}.")
    else:
        head = strong("The gain of ", chosen, " is not confirmed.")
    figure = estimated(confirmed.figure, found.primary_metric)
    starts = f" ({plural(confirmed.starts, 'fresh start')} × {plural(confirmed.rounds, 'round')} of each)"
    beside: Phrase = say("; the baseline has too few results there to compare it with")
    if confirmed.ratio is not None:
        baseline = say("the baseline ", Name(found.baseline.name))
        beside = say(
            ", ", times(confirmed.ratio), " ", ratio_meaning(found.primary_metric, baseline), starts
        )
    return say(head, f" In a fresh study, its {found.primary_metric.name} is ", figure, beside, ".")


def _limits(found: Tuning) -> Phrase:
    said: list[Phrase] = []
    for finding in found.chosen_findings:
        basis = ""
        if (
            finding.name == QUALITY_LOSS
            and finding.value is not None
            and found.confirmed is not None
        ):
            fresh = found.confirmed.windows
            basis = (
                "on the search's own windows"
                if fresh is None
                else f"on {plural(fresh, 'window')} of fresh text"
            )
        said.append(say(f"{finding.verdict.value}: ", _held(finding, basis)))
    return say(" Limits: ", joined(said, "; "), ".") if said else ()


def _held(finding: Finding, basis: str = "") -> Phrase:
    """`ttft 24 [23, 25] ms against 100 ms`"""
    why = f" ({finding.reason})" if finding.reason else ""
    if finding.value is None:
        return say(f"{finding.name}{why}")
    limit = recommendation_limit_text(finding.unit, finding.limit)
    return say(f"{finding.name} ", finding_quantity(finding, basis), f" against {limit}{why}")


def _section(found: Tuning) -> Section:
    labels = Labels((tried.config for tried in found.tried), MAX_NAME)
    shared = [paragraph(labels.shared)] if labels.shared else []
    refused = Counter(refusal.reason for refusal in found.refused)
    reasons = [
        *_out(found),
        *(
            say(f"Not applicable ({plural(configs, 'config')}): {plain_words(reason, MAX_CAUSE)}")
            for reason, configs in refused.items()
        ),
    ]
    return Section(
        say("What was searched"),
        (*shared, _table(found, labels), *bullets(reasons)),
        in_terminal=True,
    )


def _table(found: Tuning, labels: Labels) -> Table:
    metric = found.primary_metric
    return table(
        found.tried,
        words_column("Outcome", lambda tried: tried.fate.value),
        words_column("Config", lambda tried: Name(labels[tried.config])),
        ratio_column(
            "vs. baseline",
            lambda tried: (
                "baseline" if tried.config == found.baseline else times(tried.ratio_to_baseline)
            ),
        ),
        number_column(
            metric.label, quantity_unit(metric), lambda tried: estimated(tried.figure, metric)
        ),
        number_column("Starts", Unit.COUNT, lambda tried: number(tried.starts, Unit.COUNT)),
        words_column(
            "Limits",
            lambda tried: ", ".join(
                f"{finding.name} {MARKS[finding.verdict]}" for finding in tried.findings
            ),
            shown_from=100,
        ),
        mark=lambda tried: Mark.BEST if tried.config == found.chosen else None,
    )


def _out(found: Tuning) -> Iterator[Phrase]:
    """One line per reason, which several may share: why a config cannot be chosen, or was not."""
    reasons: dict[Phrase, list[str]] = {}
    for tried in found.tried:
        if tried.fate not in (Fate.LEFT, Fate.RULED_OUT, Fate.NO_RESULT):
            continue
        own = [plain_words(tried.reason, MAX_CAUSE)] if tried.reason else []
        unmet = [_held(finding) for finding in tried.findings if finding.verdict is not Verdict.MET]
        if own or unmet:
            reasons.setdefault(
                say(f"{tried.fate.value.capitalize()}: ", joined([*own, *unmet], "; ")), []
            ).append(tried.config.name)
    for reason, configs in reasons.items():
        yield say(reason, ": ", listing(name_phrases(configs), most=FEW), ".")


def _what_to_know(found: Tuning) -> Section:
    folders = [found.search_folder, *([found.confirmed.folder] if found.confirmed else [])]
    reports = listing(name_phrases(f"{folder}/report/index.html" for folder in folders))
    notes: list[Phrase] = [say("Reports: ", reports, ".")]
    if found.confirmed is not None:
        notes.append(
            say(
                "The figures of the search chose the best, so they flatter it; the verdict's are fresh."
            )
        )
    return Section(say("What to know"), bullets(notes), in_terminal=True)

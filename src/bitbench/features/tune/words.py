"""The text of a search's result: the command to run, its confirmation, and the outcome of every
config."""

from collections import Counter
from collections.abc import Iterator

from bitbench.analysis.results.estimate import Finding, Verdict
from bitbench.analysis.results.recommendation import QUALITY_LOSS
from bitbench.features.tune.types import Confirmed, Fate, RaceEnd, Tried, Tuning
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
    Shown,
    Words,
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
FEW = 3  # names per list, since the table repeats them


def tuning_document(tuning: Tuning) -> Document:
    """Return the page that answers `bitbench tune`."""
    deploy = [deployment_section("it", tuning.deploy)] if tuning.deploy else []
    return Document(
        say("What to run: ", tuning.name),
        (
            paragraph("Asked for: ", _asked(tuning), f", in {show_duration(tuning.budget_s)}."),
            Paragraph(_searched(tuning)),
            Paragraph(_verdict(tuning)),
        ),
        (_section(tuning), *deploy, _what_to_know(tuning)),
    )


def _asked(tuning: Tuning) -> Phrase:
    most = "highest" if tuning.primary_metric.higher_is_better else "lowest"
    goal = f"the {most} {tuning.primary_metric.name}"
    goal_phrase = recommendation_goal_phrase(goal, tuning.limits, "peak memory")
    return say(goal_phrase, " on ", Name(tuning.workload))


def _searched(tuning: Tuning) -> Phrase:
    outcome = f"Searched {plural(len(tuning.tried), 'config')} in {show_duration(tuning.took_s)}."
    if tuning.chosen is None or tuning.shortfall is None:
        return say(outcome)
    confidence = percent(tuning.confidence)
    if tuning.shortfall == 0:
        return say(
            outcome,
            f" Every other one is worse than the best, or ruled out, with {confidence} confidence.",
        )
    left = sum(tried.fate is Fate.LEFT for tried in tuning.tried)
    bound = f"with {confidence} confidence by at most {percent(tuning.shortfall)}"
    return say(outcome, f" {plural(left, 'other')} may be as good or better, {bound}.")


def _verdict(tuning: Tuning) -> Phrase:
    if tuning.chosen is None:
        return strong(_none_chosen(tuning))
    chosen = Name(tuning.chosen.name)
    doubt = ""
    if tuning.chosen_verdict is Verdict.INCONCLUSIVE:
        doubt = ", but whether it meets its limits is inconclusive"
    if tuning.confirmed is not None:
        return say(_confirmed(tuning, tuning.confirmed, chosen, doubt), _limits(tuning))
    if tuning.shortfall is None:
        head = strong("Inconclusive. Keep the baseline ", chosen, f" for now{doubt}.")
        return say(
            head,
            " Some have too few results beside it; the same command measures on.",
            _limits(tuning),
        )
    return say(strong("Keep the baseline ", chosen, f"{doubt}."), _limits(tuning))


def _none_chosen(tuning: Tuning) -> str:
    if not any(tried.figure for tried in tuning.tried):
        return "No config has a result."
    if tuning.end is RaceEnd.NONE_MEETS:
        return "No config meets the limits."
    return "Inconclusive: no config is known to meet the limits."


def _confirmed(tuning: Tuning, confirmed: Confirmed, chosen: Name, doubt: str) -> Phrase:
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
    metric = tuning.primary_metric
    if confirmed.ratio is None:
        ratio = say("; the baseline has too few results there to compare it with")
    else:
        starts = plural(confirmed.starts, "fresh start")
        rounds = plural(confirmed.rounds, "round")
        baseline = say("the baseline ", Name(tuning.baseline.name))
        meaning = ratio_meaning(metric, baseline)
        ratio = say(", ", times(confirmed.ratio), " ", meaning, f" ({starts} × {rounds} of each)")
    figure = estimated(confirmed.figure, metric)
    return say(head, f" In a fresh study, its {metric.name} is ", figure, ratio, ".")


def _limits(tuning: Tuning) -> Phrase:
    """Return each limit of the chosen config with its verdict. Empty without limits."""
    phrases: list[Phrase] = []
    for finding in tuning.chosen_findings:
        basis = ""
        if (
            finding.name == QUALITY_LOSS
            and finding.value is not None
            and tuning.confirmed is not None
        ):
            windows = tuning.confirmed.windows
            basis = "on the search's own windows"
            if windows is not None:
                basis = f"on {plural(windows, 'window')} of fresh text"
        phrases.append(say(f"{finding.verdict.value}: ", _held(finding, basis)))
    if not phrases:
        return ()
    return say(" Limits: ", joined(phrases, "; "), ".")


def _held(finding: Finding, basis: str = "") -> Phrase:
    """Return a finding with its limit, such as `ttft 24 [23, 25] ms against 100 ms`."""
    why = f" ({finding.reason})" if finding.reason else ""
    if finding.value is None:
        return say(f"{finding.name}{why}")
    limit = recommendation_limit_text(finding.unit, finding.limit)
    return say(f"{finding.name} ", finding_quantity(finding, basis), f" against {limit}{why}")


def _section(tuning: Tuning) -> Section:
    labels = Labels((tried.config for tried in tuning.tried), MAX_NAME)
    shared = [paragraph(labels.shared)] if labels.shared else []
    lines = list(_out(tuning))
    refused = Counter(refusal.reason for refusal in tuning.refused)
    for reason, count in refused.items():
        configs = plural(count, "config")
        lines.append(say(f"Not applicable ({configs}): {plain_words(reason, MAX_CAUSE)}"))
    return Section(
        say("What was searched"),
        (*shared, _table(tuning, labels), *bullets(lines)),
        in_terminal=True,
    )


def _table(tuning: Tuning, labels: Labels) -> Table:
    metric = tuning.primary_metric

    def ratio(tried: Tried) -> Shown:
        if tried.config == tuning.baseline:
            return "baseline"
        return times(tried.ratio_to_baseline)

    def limits(tried: Tried) -> str:
        marks = (f"{finding.name} {MARKS[finding.verdict]}" for finding in tried.findings)
        return ", ".join(marks)

    return table(
        tuning.tried,
        words_column("Outcome", lambda tried: tried.fate.value),
        words_column("Config", lambda tried: Name(labels[tried.config])),
        ratio_column("vs. baseline", ratio),
        number_column(
            metric.label, quantity_unit(metric), lambda tried: estimated(tried.figure, metric)
        ),
        number_column("Starts", Unit.COUNT, lambda tried: number(tried.starts, Unit.COUNT)),
        words_column("Limits", limits, shown_from=100),
        mark=lambda tried: Mark.BEST if tried.config == tuning.chosen else None,
    )


def _out(tuning: Tuning) -> Iterator[Phrase]:
    """Yield one line per reason why configs cannot be chosen, or were not, with these configs."""
    reasons: dict[Phrase, list[str]] = {}
    for tried in tuning.tried:
        if tried.fate not in (Fate.LEFT, Fate.RULED_OUT, Fate.NO_RESULT):
            continue
        causes: list[Words] = []
        if tried.reason:
            causes.append(plain_words(tried.reason, MAX_CAUSE))
        for finding in tried.findings:
            if finding.verdict is not Verdict.MET:
                causes.append(_held(finding))
        if causes:
            reason = say(f"{tried.fate.value.capitalize()}: ", joined(causes, "; "))
            reasons.setdefault(reason, []).append(tried.config.name)
    for reason, configs in reasons.items():
        yield say(reason, ": ", listing(name_phrases(configs), most=FEW), ".")


def _what_to_know(tuning: Tuning) -> Section:
    folders = [tuning.search_folder]
    if tuning.confirmed:
        folders.append(tuning.confirmed.folder)
    reports = listing(name_phrases(f"{folder}/report/index.html" for folder in folders))
    notes: list[Phrase] = [say("Reports: ", reports, ".")]
    if tuning.confirmed is not None:
        notes.append(
            say(
                "The figures of the search chose the best, so they flatter it; "
                "the verdict's are fresh."
            )
        )
    return Section(say("What to know"), bullets(notes), in_terminal=True)

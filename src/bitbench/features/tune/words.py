"""The text of a search's result: the command to run, its confirmation, and the outcome of every
config."""

from collections import Counter
from collections.abc import Iterator

from bitbench.analysis.results.estimate import Finding, Verdict
from bitbench.analysis.results.recommendation import QUALITY_LOSS
from bitbench.features.tune.types import Confirmed, Fate, RaceEnd, Tried, Tuning
from bitbench.reports.answers.recommend import (
    build_deployment_section,
    describe_goal,
    format_limit,
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
    find_unit,
    format_percent,
    make_finding_quantity,
    make_number,
    make_ratio,
    to_quantity,
)
from bitbench.reports.document.words import (
    MAX_NAME,
    Shown,
    Words,
    build_table,
    bullets,
    describe_ratio,
    format_count,
    format_list,
    format_plain_words,
    join_phrases,
    list_names,
    make_number_column,
    make_ratio_column,
    make_words_column,
    paragraph,
    say,
    strong,
)
from bitbench.reports.labels import Labels
from bitbench.util.units import show_duration

MAX_CAUSE = 160
FEW = 3  # names per list, since the table repeats them


def build_tuning_document(tuning: Tuning) -> Document:
    """Return the page that answers `bitbench tune`."""
    deploy = [build_deployment_section("it", tuning.deploy)] if tuning.deploy else []
    return Document(
        say("What to run: ", tuning.name),
        (
            paragraph(
                "Asked for: ", _format_request(tuning), f", in {show_duration(tuning.budget_s)}."
            ),
            Paragraph(_format_search(tuning)),
            Paragraph(_format_verdict(tuning)),
        ),
        (_build_search_section(tuning), *deploy, _build_notes_section(tuning)),
    )


def _format_request(tuning: Tuning) -> Phrase:
    most = "highest" if tuning.primary_metric.higher_is_better else "lowest"
    goal = f"the {most} {tuning.primary_metric.name}"
    goal_phrase = describe_goal(goal, tuning.limits, "peak memory")
    return say(goal_phrase, " on ", Name(tuning.workload))


def _format_search(tuning: Tuning) -> Phrase:
    outcome = (
        f"Searched {format_count(len(tuning.tried), 'config')} in {show_duration(tuning.took_s)}."
    )
    if tuning.chosen is None or tuning.shortfall is None:
        return say(outcome)
    confidence = format_percent(tuning.confidence)
    if tuning.shortfall == 0:
        return say(
            outcome,
            f" Every other one is worse than the best, or ruled out, with {confidence} confidence.",
        )
    left = sum(tried.fate is Fate.LEFT for tried in tuning.tried)
    bound = f"with {confidence} confidence by at most {format_percent(tuning.shortfall)}"
    return say(outcome, f" {format_count(left, 'other')} may be as good or better, {bound}.")


def _format_verdict(tuning: Tuning) -> Phrase:
    if tuning.chosen is None:
        return strong(_describe_missing_choice(tuning))
    chosen = Name(tuning.chosen.name)
    doubt = ""
    if tuning.chosen_verdict is Verdict.INCONCLUSIVE:
        doubt = ", but whether it meets its limits is inconclusive"
    if tuning.confirmed is not None:
        return say(
            _format_confirmation(tuning, tuning.confirmed, chosen, doubt), _format_limits(tuning)
        )
    if tuning.shortfall is None:
        head = strong("Inconclusive. Keep the baseline ", chosen, f" for now{doubt}.")
        return say(
            head,
            " Some have too few results beside it; the same command measures on.",
            _format_limits(tuning),
        )
    return say(strong("Keep the baseline ", chosen, f"{doubt}."), _format_limits(tuning))


def _describe_missing_choice(tuning: Tuning) -> str:
    if not any(tried.figure for tried in tuning.tried):
        return "No config has a result."
    if tuning.end is RaceEnd.NONE_MEETS:
        return "No config meets the limits."
    return "Inconclusive: no config is known to meet the limits."


def _format_confirmation(tuning: Tuning, confirmed: Confirmed, chosen: Name, doubt: str) -> Phrase:
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
        starts = format_count(confirmed.starts, "fresh start")
        rounds = format_count(confirmed.rounds, "round")
        baseline = say("the baseline ", Name(tuning.baseline.name))
        meaning = describe_ratio(metric, baseline)
        ratio = say(
            ", ", make_ratio(confirmed.ratio), " ", meaning, f" ({starts} × {rounds} of each)"
        )
    figure = to_quantity(confirmed.figure, metric)
    return say(head, f" In a fresh study, its {metric.name} is ", figure, ratio, ".")


def _format_limits(tuning: Tuning) -> Phrase:
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
                basis = f"on {format_count(windows, 'window')} of fresh text"
        phrases.append(say(f"{finding.verdict.value}: ", _format_finding(finding, basis)))
    if not phrases:
        return ()
    return say(" Limits: ", join_phrases(phrases, "; "), ".")


def _format_finding(finding: Finding, basis: str = "") -> Phrase:
    """Return a finding with its limit, such as `ttft 24 [23, 25] ms against 100 ms`."""
    why = f" ({finding.reason})" if finding.reason else ""
    if finding.value is None:
        return say(f"{finding.name}{why}")
    limit = format_limit(finding.unit, finding.limit)
    return say(f"{finding.name} ", make_finding_quantity(finding, basis), f" against {limit}{why}")


def _build_search_section(tuning: Tuning) -> Section:
    labels = Labels((tried.config for tried in tuning.tried), MAX_NAME)
    shared = [paragraph(labels.shared)] if labels.shared else []
    lines = list(_iter_reasons(tuning))
    refused = Counter(refusal.reason for refusal in tuning.refused)
    for reason, count in refused.items():
        configs = format_count(count, "config")
        lines.append(say(f"Not applicable ({configs}): {format_plain_words(reason, MAX_CAUSE)}"))
    return Section(
        say("What was searched"),
        (*shared, _build_config_table(tuning, labels), *bullets(lines)),
        in_terminal=True,
    )


def _build_config_table(tuning: Tuning, labels: Labels) -> Table:
    metric = tuning.primary_metric

    def ratio(tried: Tried) -> Shown:
        if tried.config == tuning.baseline:
            return "baseline"
        return make_ratio(tried.ratio_to_baseline)

    def limits(tried: Tried) -> str:
        marks = (f"{finding.name} {MARKS[finding.verdict]}" for finding in tried.findings)
        return ", ".join(marks)

    return build_table(
        tuning.tried,
        make_words_column("Outcome", lambda tried: tried.fate.value),
        make_words_column("Config", lambda tried: Name(labels[tried.config])),
        make_ratio_column("vs. baseline", ratio),
        make_number_column(
            metric.label, find_unit(metric), lambda tried: to_quantity(tried.figure, metric)
        ),
        make_number_column(
            "Starts", Unit.COUNT, lambda tried: make_number(tried.starts, Unit.COUNT)
        ),
        make_words_column("Limits", limits, shown_from=100),
        mark=lambda tried: Mark.BEST if tried.config == tuning.chosen else None,
    )


def _iter_reasons(tuning: Tuning) -> Iterator[Phrase]:
    """Yield one line per reason why configs cannot be chosen, or were not, with these configs."""
    reasons: dict[Phrase, list[str]] = {}
    for tried in tuning.tried:
        if tried.fate not in (Fate.LEFT, Fate.RULED_OUT, Fate.NO_RESULT):
            continue
        causes: list[Words] = []
        if tried.reason:
            causes.append(format_plain_words(tried.reason, MAX_CAUSE))
        for finding in tried.findings:
            if finding.verdict is not Verdict.MET:
                causes.append(_format_finding(finding))
        if causes:
            reason = say(f"{tried.fate.value.capitalize()}: ", join_phrases(causes, "; "))
            reasons.setdefault(reason, []).append(tried.config.name)
    for reason, configs in reasons.items():
        yield say(reason, ": ", format_list(list_names(configs), most=FEW), ".")


def _build_notes_section(tuning: Tuning) -> Section:
    folders = [tuning.search_folder]
    if tuning.confirmed:
        folders.append(tuning.confirmed.folder)
    reports = format_list(list_names(f"{folder}/report/index.html" for folder in folders))
    notes: list[Phrase] = [say("Reports: ", reports, ".")]
    if tuning.confirmed is not None:
        notes.append(
            say(
                "The figures of the search chose the best, so they flatter it; "
                "the verdict's are fresh."
            )
        )
    return Section(say("What to know"), bullets(notes), in_terminal=True)

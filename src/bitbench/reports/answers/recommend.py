"""A recommendation: what to use on each workload, why not the others, and how to serve it."""

from collections.abc import Iterator, Sequence
from functools import partial

from bitbench.analysis.results.estimate import Finding, Verdict
from bitbench.analysis.results.recommendation import (
    MEMORY,
    QUALITY_NOT_MEASURED,
    Choice,
    Judged,
    Limits,
    Recommendation,
)
from bitbench.reports.document.model import (
    Block,
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
from bitbench.reports.document.numbers import (
    MARKS,
    find_unit,
    format_percent,
    make_finding_quantity,
    make_ratio,
    to_quantity,
)
from bitbench.reports.document.words import (
    MAX_NAME,
    ColumnOf,
    Words,
    build_table,
    bullets,
    describe_ratio,
    format_list,
    format_names,
    format_plain_words,
    join_phrases,
    make_number_column,
    make_ratio_column,
    make_words_column,
    mark_if,
    paragraph,
    say,
    strong,
)
from bitbench.reports.labels import Labels
from bitbench.reports.sections.ranked import iter_finding_reasons
from bitbench.util.units import show_bytes


def build_deployment_section(what: Words, command: tuple[str, ...]) -> Section:
    """Return the section with the command that serves a config."""
    about = paragraph(
        "As it was measured, prefix caching off; size context and concurrency for your own "
        "requests."
    )
    lines = tuple(format_command_lines(command))
    return Section(say("To deploy ", what), (about, CodeBlock(lines)), in_terminal=True)


def format_command_lines(words: tuple[str, ...]) -> list[str]:
    """Return a command with a line for each option, to be read and copied at any width."""
    lines = [""]
    for word in words:
        if word.startswith("--"):
            lines[-1] += " \\"
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return lines


VERDICTS = {Verdict.MET: "meets", Verdict.INCONCLUSIVE: "inconclusive", Verdict.MISSED: "ruled out"}
MAX_CAUSE = 160
_NO_WORKLOADS = say(
    strong("No config has a result:"),
    " the study has no workloads, so nothing was timed. ",
    Name("bitbench report"),
    " shows the quality that it measured; ",
    Name("workloads"),
    " in its file add speed.",
)
ROOM = 90  # characters of a terminal from which there is room for metrics without a limit
ROOM_FOR_INTERVALS = 180


def build_recommendation(recommendation: Recommendation) -> Document:
    """Return what to run on each workload, why not the others, and the commands."""
    metric = recommendation.primary_metric
    extreme = "highest" if metric.higher_is_better else "lowest"
    goal = describe_goal(
        f"the {extreme} {metric.name}", recommendation.limits, recommendation.memory_name
    )
    answer = [paragraph("Asked for: ", goal, ".")]
    sections = []
    for choice in recommendation.choices:
        answer.append(Paragraph(_describe_choice(recommendation, choice)))
        sections.append(_build_section(recommendation, choice))
    if not recommendation.choices:
        answer.append(paragraph(_NO_WORKLOADS))
    sections += _iter_deployments(recommendation)
    sections += _iter_notes(recommendation)
    title = say("What to run: ", recommendation.study)
    return Document(title, tuple(answer), tuple(sections))


def describe_goal(goal: str, limits: Limits, memory_name: str) -> Phrase:
    """Return what is optimized and under which limits."""
    parts = []
    for objective in limits.objectives:
        limit = format_limit("s", objective.limit)
        parts.append(f"{objective.name} of at most {limit}")
    if limits.memory_bytes is not None:
        limit = format_limit("bytes", limits.memory_bytes)
        parts.append(f"{memory_name} of at most {limit}")
    if limits.quality_loss is not None:
        limit = format_limit("share", limits.quality_loss)
        parts.append(f"quality loss of at most {limit}")
    if not parts:
        return say(goal, ", without limits")
    return say(goal, " with ", format_list(parts))


def format_limit(unit: str, limit: float) -> str:
    """Return a limit as a person would write it: 4 GB stays 4 GB, although reports use MiB."""
    if unit == Unit.SHARE:
        return format_percent(limit)
    if unit == Unit.BYTES:
        is_round = limit >= 1e9 and limit % 1e8 == 0
        return f"{limit / 1e9:g} GB" if is_round else show_bytes(limit)
    return f"{limit:g} s" if limit >= 1 else f"{1000 * limit:g} ms"


def _describe_choice(recommendation: Recommendation, choice: Choice) -> Phrase:
    """Return what to use on a workload, or why it has no choice."""
    if choice.chosen is not None:
        return _describe_use(recommendation, choice, choice.of(choice.chosen))
    if choice.starts_needed is not None:
        return strong(
            "One start decides nothing on ",
            Name(choice.workload),
            f"; {choice.starts_needed} of each may.",
        )
    if any(judged.figure for judged in choice.judged):
        return _describe_unmet_limits(choice)
    return strong("No config has a result on ", Name(choice.workload), ".")


def _describe_use(recommendation: Recommendation, choice: Choice, judged: Judged) -> Phrase:
    """Return the choice with its figures, its cautions and its rivals."""
    parts = [
        strong(_format_headline(choice, judged)),
        _describe_figures(recommendation, choice, judged),
    ]
    if judged.same_engine is not None:
        # The baseline runs on another engine: this is the gain of quantization alone.
        other = say("the unquantized ", Name(judged.same_engine.unquantized.name))
        meaning = describe_ratio(recommendation.primary_metric, other)
        ratio = make_ratio(judged.same_engine.ratio)
        parts.append(say("On the same engine it is ", ratio, " ", meaning, "."))
    if judged.failed_trials:
        parts.append(say(f"Caution: {judged.failed_trials} of its {judged.trials} trials failed."))
    if choice.undecided:
        rivals = format_names(config.name for config in choice.undecided)
        parts.append(say("Undecided between it and ", rivals, "."))
    return join_phrases(parts, " ")


def _format_headline(choice: Choice, judged: Judged) -> Phrase:
    """Return what to use. A config of unknown or flagged quality is only called the fastest."""
    if judged.quality_doubt:
        doubt = f"; its quality {format_plain_words(judged.quality_doubt, MAX_CAUSE)}."
        return say("Fastest on ", Name(choice.workload), ": ", Name(judged.config.name), doubt)
    ratio = judged.ratio_to_baseline
    is_confirmed = judged.config == choice.baseline or ratio is None or ratio.is_above(1)
    head = "Use " if is_confirmed else "Leading, not confirmed: "
    return say(head, Name(judged.config.name), " on ", Name(choice.workload), ".")


def _describe_figures(recommendation: Recommendation, choice: Choice, judged: Judged) -> Phrase:
    """Return the primary metric of a config, and its ratio to the baseline."""
    metric = recommendation.primary_metric
    figure = say(f"Its {metric.name} is ", to_quantity(judged.figure, metric))
    ratio = make_ratio(judged.ratio_to_baseline)
    if ratio is not None and choice.baseline is not None:
        baseline = say("the baseline ", Name(choice.baseline.name))
        return say(figure, ", ", ratio, " ", describe_ratio(metric, baseline), ".")
    if judged.config == choice.baseline:
        return say(figure, "; it is the baseline itself.")
    return say(figure, "; the baseline has no result here.")


def _describe_unmet_limits(choice: Choice) -> Phrase:
    """Return which limits no config meets, or which are inconclusive, and how to decide."""
    names = dict.fromkeys(finding.name for _, finding in _iter_findings(choice))
    limits = format_list(list(names)) or say("the study's limits on quality")
    unsure = choice.list_with_verdict(Verdict.INCONCLUSIVE)
    if not unsure:
        return strong("No config meets ", limits, " on ", Name(choice.workload), ".")
    head = strong("Inconclusive: ", limits, " on ", Name(choice.workload), ".")
    return say(
        head, f" {len(unsure)} may meet it.", " To decide, ", _describe_next_step(unsure), "."
    )


def _describe_next_step(unsure: Sequence[Judged]) -> Phrase:
    """Return what to do about inconclusive limits."""
    findings = [finding for judged in unsure for finding in judged.findings]
    open_findings = [finding for finding in findings if finding.verdict is Verdict.INCONCLUSIVE]
    if any(finding.unit != Unit.SHARE for finding in open_findings):
        return say("run the study again with a larger budget or more starts")
    if any(finding.reason == QUALITY_NOT_MEASURED for finding in open_findings):
        return say("add ", Name("quality: {}"), " to the study and run it into a new folder")
    return say(
        "measure quality with more ",
        Name("windows"),
        " or a longer ",
        Name("corpus"),
        ", into a new folder",
    )


def _build_section(recommendation: Recommendation, choice: Choice) -> Section:
    """Return the table of a workload, and why configs have no result or meet no limit."""
    blocks: list[Block] = []
    if any(judged.figure for judged in choice.judged):
        labels = Labels((judged.config for judged in choice.judged), MAX_NAME)
        if labels.shared:
            blocks.append(paragraph(labels.shared))
        blocks.append(_build_table(recommendation, choice, labels))
    blocks += bullets(
        [*_iter_missing_results(choice), *iter_finding_reasons(_iter_findings(choice))]
    )
    model = say(", ", Name(choice.model)) if choice.model else ()
    return Section(say(Name(choice.workload), model), tuple(blocks), in_terminal=True)


def _iter_findings(choice: Choice) -> Iterator[tuple[str, Finding]]:
    """Yield each finding with the name of its config."""
    for judged in choice.judged:
        for finding in judged.findings:
            yield judged.config.name, finding


def _iter_missing_results(choice: Choice) -> Iterator[Phrase]:
    """Yield why configs have no result, once for each cause."""
    causes: dict[str, list[str]] = {}
    for judged in choice.judged:
        if judged.figure is None:
            causes.setdefault(judged.why_no_result, []).append(judged.config.name)
    for cause, configs in causes.items():
        why = format_plain_words(cause, MAX_CAUSE)
        yield say("No result of ", format_names(configs), ": ", why, ".")


def _build_table(recommendation: Recommendation, choice: Choice, labels: Labels) -> Table:
    """Return a row per config, with a column per limit, which a narrow terminal keeps.

    The ratio to the baseline follows, then the memory unless it has a limit.
    """
    metric = recommendation.primary_metric
    findings = next(judged for judged in choice.judged if judged.figure is not None).findings
    columns: list[ColumnOf[Judged]] = []
    for index, limit in enumerate(findings):
        get_value = partial(_find_finding, index)
        columns.append(
            make_number_column(limit.name, limit.unit, get_value, intervals_from=ROOM_FOR_INTERVALS)
        )
    columns.append(make_ratio_column("vs. baseline", partial(_find_ratio, choice)))
    has_memory = any(judged.memory for judged in choice.judged)
    if has_memory and all(finding.name != MEMORY for finding in findings):
        columns.append(make_number_column("Memory", Unit.BYTES, _find_memory, shown_from=ROOM))
    return build_table(
        choice.judged,
        make_words_column("Verdict", lambda judged: _describe_outcome(choice, judged)),
        make_words_column("Config", lambda judged: Name(labels[judged.config])),
        make_number_column(
            metric.label, find_unit(metric), lambda judged: to_quantity(judged.figure, metric)
        ),
        *columns,
        mark=lambda judged: mark_if(judged.config == choice.chosen, Mark.BEST),
    )


def _find_ratio(choice: Choice, judged: Judged) -> Words:
    return "baseline" if judged.config == choice.baseline else make_ratio(judged.ratio_to_baseline)


def _find_memory(judged: Judged) -> float | None:
    return judged.memory.value if judged.memory else None


def _find_finding(index: int, judged: Judged) -> Quantity | None:
    """Return a finding, or None for a config without a result, which has no findings."""
    if not judged.findings:
        return None
    finding = judged.findings[index]
    return make_finding_quantity(finding, MARKS[finding.verdict])


def _describe_outcome(choice: Choice, judged: Judged) -> str:
    if judged.config == choice.chosen:
        return "use this"
    if judged.config in choice.undecided:
        return "may be as good"
    if judged.figure is None:
        return "no result"
    if choice.starts_needed is not None and judged.verdict is Verdict.MET:
        return "not ranked"
    if judged.is_flagged and judged.verdict is Verdict.MET:
        return "quality flagged"
    return VERDICTS[judged.verdict] if judged.findings else "behind"


def _iter_deployments(recommendation: Recommendation) -> Iterator[Section]:
    """Yield a section for each command, which may be the choice on several workloads."""
    commands = {choice.deploy: choice.chosen for choice in recommendation.choices if choice.deploy}
    for command, config in commands.items():
        if config is not None:
            yield build_deployment_section(Name(config.name), command)


def _iter_notes(recommendation: Recommendation) -> Iterator[Section]:
    """Yield a section of notes, if there are any."""
    notes: list[str] = []
    if any(judged.findings for choice in recommendation.choices for judged in choice.judged):
        notes.append(
            "✓ the whole interval meets the limit, ✗ the whole interval is beyond it, ? "
            "inconclusive. Only ✓ counts as met, only ✗ rules out."
        )
    notes += recommendation.notes
    if notes:
        yield Section(say("What to know"), bullets(notes), in_terminal=True)

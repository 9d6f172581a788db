"""A recommendation: what to use on each workload, why not the others, and the command that serves it."""

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
    estimated,
    finding_quantity,
    percent,
    quantity_unit,
    times,
)
from bitbench.reports.document.words import (
    MAX_NAME,
    ColumnOf,
    Words,
    bullets,
    joined,
    listing,
    name_phrases,
    number_column,
    paragraph,
    plain_words,
    ratio_column,
    ratio_meaning,
    say,
    strong,
    table,
    words_column,
)
from bitbench.reports.labels import Labels
from bitbench.reports.sections.ranked import finding_reasons
from bitbench.util.units import show_bytes


def deployment_section(what: Words, command: tuple[str, ...]) -> Section:
    about = paragraph(
        "As it was measured, prefix caching off; size context and concurrency for your own requests."
    )
    return Section(
        say("To deploy ", what),
        (about, CodeBlock(tuple(deployment_section_lines(command)))),
        in_terminal=True,
    )


def deployment_section_lines(words: tuple[str, ...]) -> list[str]:
    """A line for each option, so that it can be read and copied at any width."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(word)
    texts = [" ".join(line) for line in lines]
    return [*(f"{text} \\" for text in texts[:-1]), texts[-1]]


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
ROOM = 90  # characters of a terminal from which there is room for what is no limit
ROOM_FOR_INTERVALS = 180


def recommendation_document(found: Recommendation) -> Document:
    goal = f"the {'highest' if found.primary_metric.higher_is_better else 'lowest'} {found.primary_metric.name}"
    return Document(
        say("What to run: ", found.study),
        (
            paragraph(
                "Asked for: ",
                recommendation_goal_phrase(goal, found.limits, found.memory_name),
                ".",
            ),
            *(Paragraph(_verdict(found, choice)) for choice in found.choices),
            *([] if found.choices else [paragraph(_NO_WORKLOADS)]),
        ),
        (
            *(_section(found, choice) for choice in found.choices),
            *_deployments(found),
            *_what_to_know(found),
        ),
    )


def recommendation_goal_phrase(goal: str, limits: Limits, memory_name: str) -> Phrase:
    asked = [
        f"{objective.name} of at most {recommendation_limit_text('s', objective.limit)}"
        for objective in limits.objectives
    ]
    if limits.memory_bytes is not None:
        asked.append(
            f"{memory_name} of at most {recommendation_limit_text('bytes', limits.memory_bytes)}"
        )
    if limits.quality_loss is not None:
        asked.append(
            f"quality loss of at most {recommendation_limit_text('share', limits.quality_loss)}"
        )
    return say(goal, " with ", listing(asked)) if asked else say(goal, ", without limits")


def recommendation_limit_text(unit: str, limit: float) -> str:
    """As a person would write it: 4 GB stays 4 GB, although figures are in MiB."""
    if unit == Unit.SHARE:
        return percent(limit)
    if unit == Unit.BYTES:
        return f"{limit / 1e9:g} GB" if limit >= 1e9 and limit % 1e8 == 0 else show_bytes(limit)
    return f"{limit:g} s" if limit >= 1 else f"{1000 * limit:g} ms"


def _verdict(found: Recommendation, choice: Choice) -> Phrase:
    if choice.chosen is not None:
        return _use(found, choice, choice.of(choice.chosen))
    if choice.starts_needed is not None:
        return strong(
            "One start decides nothing on ",
            Name(choice.workload),
            f"; {choice.starts_needed} of each may.",
        )
    if any(judged.figure for judged in choice.judged):
        return _none_meets(choice)
    return strong("No config has a result on ", Name(choice.workload), ".")


def _use(found: Recommendation, choice: Choice, judged: Judged) -> Phrase:
    said = [strong(_headline(choice, judged)), _figures(found, choice, judged)]
    if (
        judged.same_engine is not None
    ):  # the baseline runs on another one: what quantization alone brought
        other = say("the unquantized ", Name(judged.same_engine.unquantized.name))
        meaning = ratio_meaning(found.primary_metric, other)
        said.append(
            say("On the same engine it is ", times(judged.same_engine.ratio), " ", meaning, ".")
        )
    if judged.failed_trials:
        said.append(say(f"Caution: {judged.failed_trials} of its {judged.trials} trials failed."))
    if choice.undecided:
        said.append(
            say(
                "Undecided between it and ",
                listing(name_phrases(each.name for each in choice.undecided)),
                ".",
            )
        )
    return joined(said, " ")


def _headline(choice: Choice, judged: Judged) -> Phrase:
    """Return what to use; a config whose quality is unknown or flagged is only called the fastest."""
    if judged.quality_doubt:
        doubt = f"; its quality {plain_words(judged.quality_doubt, MAX_CAUSE)}."
        return say("Fastest on ", Name(choice.workload), ": ", Name(judged.config.name), doubt)
    ratio = judged.ratio_to_baseline
    is_gain = judged.config == choice.baseline or ratio is None or ratio.is_above(1)
    head = "Use " if is_gain else "Leading, not confirmed: "
    return say(head, Name(judged.config.name), " on ", Name(choice.workload), ".")


def _figures(found: Recommendation, choice: Choice, judged: Judged) -> Phrase:
    figure = say(
        f"Its {found.primary_metric.name} is ", estimated(judged.figure, found.primary_metric)
    )
    ratio = times(judged.ratio_to_baseline)
    if ratio is not None and choice.baseline is not None:
        baseline = say("the baseline ", Name(choice.baseline.name))
        return say(figure, ", ", ratio, " ", ratio_meaning(found.primary_metric, baseline), ".")
    if judged.config == choice.baseline:
        return say(figure, "; it is the baseline itself.")
    return say(figure, "; the baseline has no result here.")


def _none_meets(choice: Choice) -> Phrase:
    asked = [finding for judged in choice.judged for finding in judged.findings]
    limits = listing(list(dict.fromkeys(finding.name for finding in asked))) or say(
        "the study's limits on quality"
    )
    unsure = choice.with_verdict(Verdict.INCONCLUSIVE)
    if not unsure:
        return strong("No config meets ", limits, " on ", Name(choice.workload), ".")
    may = f" {len(unsure)} may meet it."
    to_decide = say(" To decide, ", _to_decide(unsure), ".")
    return say(strong("Inconclusive: ", limits, " on ", Name(choice.workload), "."), may, to_decide)


def _to_decide(unsure: Sequence[Judged]) -> Phrase:
    findings = [finding for judged in unsure for finding in judged.findings]
    open_ones = [finding for finding in findings if finding.verdict is Verdict.INCONCLUSIVE]
    if not all(finding.unit == Unit.SHARE for finding in open_ones):
        return say("run the study again with a larger budget or more starts")
    if any(finding.reason == QUALITY_NOT_MEASURED for finding in open_ones):
        return say("add ", Name("quality: {}"), " to the study and run it into a new folder")
    return say(
        "measure quality with more ",
        Name("windows"),
        " or a longer ",
        Name("corpus"),
        ", into a new folder",
    )


def _section(found: Recommendation, choice: Choice) -> Section:
    blocks: list[Block] = [
        *bullets((*_without_result(choice), *finding_reasons(_findings(choice))))
    ]
    if any(judged.figure for judged in choice.judged):
        labels = Labels((judged.config for judged in choice.judged), MAX_NAME)
        shared = [paragraph(labels.shared)] if labels.shared else []
        blocks = [*shared, _table(found, choice, labels), *blocks]
    model = say(", ", Name(choice.model)) if choice.model else ()
    return Section(say(Name(choice.workload), model), tuple(blocks), in_terminal=True)


def _findings(choice: Choice) -> Iterator[tuple[str, Finding]]:
    yield from (
        (judged.config.name, finding) for judged in choice.judged for finding in judged.findings
    )


def _without_result(choice: Choice) -> Iterator[Phrase]:
    """Say why configs have no result, once for each cause."""
    causes: dict[str, list[str]] = {}
    for judged in choice.judged:
        if judged.figure is None:
            causes.setdefault(judged.why_no_result, []).append(judged.config.name)
    for cause, configs in causes.items():
        yield say(
            "No result of ",
            listing(name_phrases(configs)),
            ": ",
            plain_words(cause, MAX_CAUSE),
            ".",
        )


def _table(found: Recommendation, choice: Choice, labels: Labels) -> Table:
    """A column per limit, which a narrow terminal keeps; then the ratio, and memory where that is no limit."""
    asked = next(judged for judged in choice.judged if judged.figure is not None).findings
    limits = (
        number_column(
            limit.name, limit.unit, partial(_finding, place), intervals_from=ROOM_FOR_INTERVALS
        )
        for place, limit in enumerate(asked)
    )
    figures: list[ColumnOf[Judged]] = []
    if all(finding.name != MEMORY for finding in asked) and any(
        judged.memory for judged in choice.judged
    ):
        figures.append(number_column("Memory", Unit.BYTES, _memory, shown_from=ROOM))
    return table(
        choice.judged,
        words_column("Verdict", lambda judged: _standing(choice, judged)),
        words_column("Config", lambda judged: Name(labels[judged.config])),
        number_column(
            found.primary_metric.label,
            quantity_unit(found.primary_metric),
            lambda judged: estimated(judged.figure, found.primary_metric),
        ),
        *limits,
        ratio_column(
            "vs. baseline",
            lambda judged: (
                "baseline" if judged.config == choice.baseline else times(judged.ratio_to_baseline)
            ),
        ),
        *figures,
        mark=lambda judged: Mark.BEST if judged.config == choice.chosen else None,
    )


def _memory(judged: Judged) -> float | None:
    return judged.memory.value if judged.memory else None


def _finding(place: int, judged: Judged) -> Quantity | None:
    """None of one without a result, which is not held against the limits."""
    finding = judged.findings[place] if judged.findings else None
    return None if finding is None else finding_quantity(finding, MARKS[finding.verdict])


def _standing(choice: Choice, judged: Judged) -> str:
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


def _deployments(found: Recommendation) -> Iterator[Section]:
    """One for each command, though it may be the choice on several workloads."""
    commands = {choice.deploy: choice.chosen for choice in found.choices if choice.deploy}
    for command, config in commands.items():
        if config is not None:
            yield deployment_section(Name(config.name), command)


def _what_to_know(found: Recommendation) -> tuple[Section, ...]:
    symbols = (
        "✓ the whole interval meets the limit, ✗ the whole interval is beyond it, ? inconclusive. Only ✓ counts as "
        "met, only ✗ rules out."
    )
    has_limits = any(judged.findings for choice in found.choices for judged in choice.judged)
    notes = [*([symbols] if has_limits else []), *found.notes]
    return (Section(say("What to know"), bullets(notes), in_terminal=True),) if notes else ()

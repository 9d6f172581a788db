"""Sections and sentences on equivalence within a margin and on broken conversations."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from bitbench.analysis.results.summary import ConfigQuality, StudySummary
from bitbench.features.behaviour.types import (
    Behaviour,
    Conversations,
    ConversationShare,
    Equivalence,
    TurnComparison,
)
from bitbench.reports.document.model import Block, Details, Name, Phrase, Section, Table, Unit
from bitbench.reports.document.numbers import make_quantity
from bitbench.reports.document.words import (
    MAX_NAME,
    build_table,
    bullets,
    format_count,
    format_list,
    list_names,
    make_number_column,
    make_words_column,
    paragraph,
    say,
    small_print,
    strong,
)
from bitbench.reports.labels import Labels, group_by
from bitbench.reports.sections.lead import Lead
from bitbench.study.plan import Config

NATS = "nats"
Value = TypeVar("Value")
JudgedRow = tuple[ConfigQuality, Equivalence]


def behaviour_sentences(behaviour: Behaviour, summary: StudySummary) -> Iterator[Phrase]:
    """Yield sentences for the report's answer: which variants are equivalent to their baseline."""
    labels = Labels.of(summary, MAX_NAME)
    rows_by_baseline = group_by(_list_judged_rows(behaviour, summary), lambda row: row[1].baseline)
    for baseline, rows in rows_by_baseline.items():
        reference = _format_baseline(summary, baseline, labels)
        for verdict, words in (("equivalent", "equivalent"), ("different", "not equivalent")):
            configs = [row.config for row, judged in rows if judged.verdict == verdict]
            if configs:
                names = format_list(list_names(labels[config] for config in configs))
                claim = f" {_choose_verb(len(configs))} {words} to "
                yield say("Behaviour: ", names, claim, reference, f" {_format_margin(summary)}.")
        yield from _iter_undecided_sentences(rows, labels)


def _list_judged_rows(behaviour: Behaviour, summary: StudySummary) -> list[JudgedRow]:
    """Return the rows of the quality table that have a verdict."""
    rows = []
    for row in summary.quality:
        judged = behaviour.equivalence.get(row.name)
        if judged is not None:
            rows.append((row, judged))
    return rows


def _choose_verb(count: int) -> str:
    return "is" if count == 1 else "are"


def _iter_undecided_sentences(rows: Sequence[JudgedRow], labels: Labels) -> Iterator[Phrase]:
    undecided = [row for row in rows if row[1].verdict == "inconclusive"]
    for lacks_mass, lack in ((False, "text"), (True, "probability mass")):
        configs = [row.config for row, judged in undecided if judged.lacks_mass is lacks_mass]
        if configs:
            names = format_list(list_names(labels[config] for config in configs))
            yield say("Behaviour: not enough ", lack, " to tell whether ", names, " is equivalent.")


def _format_baseline(summary: StudySummary, baseline: Config, labels: Labels) -> Phrase:
    """Return the name of a baseline. Weights without quantization are the unquantized model."""
    references = {config.config.variant for config in summary.configs if config.is_reference}
    if baseline.variant in references:
        return say("the unquantized model")
    return say(Name(labels[baseline]))


def _format_margin(summary: StudySummary) -> str:
    return f"within the {_get_margin(summary):g}-nat margin"


def behaviour_lead(behaviour: Behaviour, summary: StudySummary) -> Lead | None:
    """Return the answer of a study of quality alone, or None if it has no verdict."""
    rows = _list_judged_rows(behaviour, summary)
    if not rows:
        return None
    labels = Labels.of(summary, MAX_NAME)
    baselines = dict.fromkeys(judged.baseline for _, judged in rows)
    names = dict.fromkeys(_format_baseline(summary, baseline, labels) for baseline in baselines)
    reference = format_list(list(names), "or")
    equivalent = [row for row, judged in rows if judged.verdict == "equivalent"]
    different = sum(judged.verdict == "different" for _, judged in rows)
    undecided = len(rows) - len(equivalent) - different
    others = (*_iter_different(different), *_iter_undecided(undecided))
    if not equivalent:
        verdict = say(
            "No variant is shown to be equivalent to ", reference, f" {_format_margin(summary)}."
        )
        return Lead(verdict, others)
    variants = format_list(list_names(labels[row.config] for row in equivalent))
    claim = f" {_choose_verb(len(equivalent))} equivalent to "
    return Lead(say(variants, claim, reference, f" {_format_margin(summary)}."), others)


def _iter_different(count: int) -> Iterator[Phrase]:
    if count:
        yield say(f"{format_count(count, 'variant')} {_choose_verb(count)} not equivalent.")


def _iter_undecided(count: int) -> Iterator[Phrase]:
    if count:
        yield say(
            f"{format_count(count, 'variant')} {_choose_verb(count)} inconclusive: "
            "not enough text or probability mass to tell."
        )


def behaviour_section(behaviour: Behaviour, summary: StudySummary) -> Section:
    """Build the section on equivalence: floors, verdicts and definitions."""
    blocks: tuple[Block, ...] = (
        *_iter_floor_blocks(behaviour),
        _build_table(behaviour, summary),
        Details("What the figures of behaviour mean", bullets(_iter_definitions(summary))),
    )
    return Section(say("Behaviour"), blocks, in_terminal=True)


def _get_margin(summary: StudySummary) -> float:
    assert summary.study.quality is not None  # otherwise there is no equivalence
    return summary.study.quality.equivalence_margin


def _iter_floor_blocks(behaviour: Behaviour) -> Iterator[Block]:
    yield paragraph("Each against its own other start, the noise floor:")
    yield build_table(
        behaviour.floors,
        make_words_column("Config", lambda floor: Name(floor.config.name)),
        make_number_column("KL mean", NATS, lambda floor: make_quantity(floor.divergence, NATS)),
    )


def _build_table(behaviour: Behaviour, summary: StudySummary) -> Table:
    labels = Labels.of(summary, MAX_NAME)
    return build_table(
        _list_judged_rows(behaviour, summary),
        make_words_column("Config", lambda row: Name(labels[row[0].config])),
        make_number_column(
            "Beyond the floor", NATS, lambda row: make_quantity(row[1].excess, NATS)
        ),
        make_words_column("Verdict", lambda row: row[1].verdict),
    )


def _iter_definitions(summary: StudySummary) -> Iterator[Phrase]:
    yield say(
        strong("Noise floor"),
        ": the mean KL divergence of a config from itself when only what should not matter is "
        "changed. Another start is asked for eight windows. The floor that counts is the "
        "baseline's on its own engine; without one it is 0.",
    )
    yield say(
        strong("Verdict"),
        ": equivalent if the divergence exceeds that floor by less than "
        f"{_get_margin(summary):g} nats with the study's confidence, "
        "whatever the missing probability mass may add. Different if "
        "it certainly exceeds it by more. Otherwise inconclusive: not enough text, or not enough "
        "probability mass, to tell.",
    )


VERDICTS = {
    "more": "breaks more",
    "fewer": "breaks fewer",
    "no difference found": "no difference found",
    "inconclusive": "inconclusive",
}


def turn_behaviour_sentences(
    conversations: Conversations, summary: StudySummary
) -> Iterator[Phrase]:
    """Yield sentences for the report's answer: which variants break more conversations."""
    labels = Labels.of(summary, MAX_NAME)
    by_config = {row.config: row for row in conversations.rows}
    for row in conversations.rows:
        if row.against is not None:
            yield _describe_comparison(row, row.against, by_config[row.against.baseline], labels)


def _describe_comparison(
    row: ConversationShare, against: TurnComparison, baseline: ConversationShare, labels: Labels
) -> Phrase:
    """Return how many conversations a variant and its baseline break.

    `w4 breaks more conversations than the unquantized model (7 of 24 valid to the end, …)`
    """
    begin = f"JSON and tool calls over {format_count(row.turns, 'turn')}: "
    name = Name(labels[row.config])
    counts = f"({_format_valid(row)} valid to the end, unquantized: {_format_valid(baseline)}"
    if against.verdict == "inconclusive":
        return say(begin, name, f" is inconclusive {counts}): a larger model can tell.")
    evidence = f"{counts}; p = {against.flips.p_value:.2g})."
    if against.verdict == "no difference found":
        end = f" and the unquantized model {evidence}"
        return say(begin, "no difference found between ", name, end)
    verdict = VERDICTS[against.verdict]
    return say(begin, name, f" {verdict} conversations than the unquantized model {evidence}")


def turn_behaviour_section(conversations: Conversations, summary: StudySummary) -> Section:
    """Build the section on conversations: sentences, a table and definitions."""
    first = conversations.rows[0]
    basis = small_print(
        f"{first.conversations} scripted conversations of {format_count(first.turns, 'turn')}, "
        "half of them extractions, half tool calls, each with two examples; "
        "greedy answers of one line. "
        "The turns before are in the prompt with the script's own answers, so that every config "
        "is asked the same. A conversation ends at its first fault."
    )
    blocks: tuple[Block, ...] = (
        *bullets(turn_behaviour_sentences(conversations, summary)),
        _build_turn_table(conversations.rows, Labels.of(summary, MAX_NAME)),
        basis,
        Details("What the figures of turns mean", bullets(_iter_turn_definitions())),
    )
    return Section(say("Turns until invalid JSON"), blocks, in_terminal=True)


def _format_valid(row: ConversationShare) -> str:
    return f"{row.valid} of {row.conversations}"


def _build_turn_table(rows: tuple[ConversationShare, ...], labels: Labels) -> Table:
    return build_table(
        rows,
        make_words_column("Config", lambda row: Name(labels[row.config])),
        make_words_column("Never broke", _format_valid),
        make_number_column(
            "Broken here alone", Unit.COUNT, _read_comparison(lambda pair: pair.flips.lost)
        ),
        make_number_column(
            "Valid here alone", Unit.COUNT, _read_comparison(lambda pair: pair.flips.gained)
        ),
        make_words_column("p", _read_comparison(lambda pair: f"{pair.flips.p_value:.2g}")),
        make_words_column("Verdict", _read_comparison(lambda pair: VERDICTS[pair.verdict])),
        drop_empty=True,
    )


def _read_comparison(
    get_value: Callable[[TurnComparison], Value],
) -> Callable[[ConversationShare], Value | None]:
    """Return a function that reads a row's comparison, and returns None if the row has none."""

    def read(row: ConversationShare) -> Value | None:
        return None if row.against is None else get_value(row.against)

    return read


def _iter_turn_definitions() -> Iterator[Phrase]:
    yield say(
        strong("Never broke"),
        ": a conversation breaks at its first answer that is not the JSON object or tool call that "
        "was asked for: not JSON, a key too few or too many, a value of the wrong kind, an unknown "
        "tool. Whether values are right is not judged.",
    )
    yield say(
        strong("p"),
        ": exact test of pairs (McNemar) on the same conversations of the unquantized model on the "
        "same engine, corrected for the number of variants (Holm).",
    )
    yield say(
        strong("Verdict"),
        ": no difference found does not prove that there is none. Inconclusive: fewer than a "
        "quarter of the unquantized model's own conversations are valid to the end.",
    )

"""Sections and sentences about behaviour: equivalent within a margin or not, and broken conversations."""

from collections.abc import Iterator, Sequence

from bitbench.analysis.results.summary import ConfigQuality, StudySummary
from bitbench.features.behaviour.types import (
    Behaviour,
    Conversations,
    ConversationShare,
    Equivalence,
    TurnComparison,
)
from bitbench.reports.document.model import Block, Details, Name, Phrase, Section, Table, Unit
from bitbench.reports.document.numbers import quantity
from bitbench.reports.document.words import (
    MAX_NAME,
    bullets,
    listing,
    name_phrases,
    number_column,
    paragraph,
    plural,
    say,
    small_print,
    strong,
    table,
    words_column,
)
from bitbench.reports.labels import Labels
from bitbench.reports.sections.lead import Lead
from bitbench.study.plan import Config

NATS = "nats"
JudgedRow = tuple[ConfigQuality, Equivalence]


def behaviour_sentences(found: Behaviour, summary: StudySummary) -> Iterator[Phrase]:
    """For the answer above all tables: which variants are equivalent to their baseline within the margin."""
    labels = Labels.of(summary, MAX_NAME)
    for baseline, rows in _by_baseline(found, summary).items():
        of = _named_baseline(summary, baseline, labels)
        for verdict, words in (("equivalent", "equivalent"), ("different", "not equivalent")):
            alike = [row.config for row, judged in rows if judged.verdict == verdict]
            if alike:
                names = listing(name_phrases(labels[config] for config in alike))
                verb = "is" if len(alike) == 1 else "are"
                yield say("Behaviour: ", names, f" {verb} {words} to ", of, f" {_within(summary)}.")
        yield from _undecided_sentences(rows, labels)


def _undecided_sentences(rows: Sequence[JudgedRow], labels: Labels) -> Iterator[Phrase]:
    for lacks_mass, lack in ((False, "text"), (True, "probability mass")):
        alike = [
            row.config
            for row, judged in rows
            if judged.verdict == "inconclusive" and judged.lacks_mass is lacks_mass
        ]
        if alike:
            names = listing(name_phrases(labels[config] for config in alike))
            yield say("Behaviour: not enough ", lack, " to tell whether ", names, " is equivalent.")


def _by_baseline(found: Behaviour, summary: StudySummary) -> dict[Config, list[JudgedRow]]:
    rows: dict[Config, list[JudgedRow]] = {}
    for row in summary.quality:
        judged = found.equivalence.get(row.name)
        if judged is not None:
            rows.setdefault(judged.baseline, []).append((row, judged))
    return rows


def _named_baseline(summary: StudySummary, baseline: Config, labels: Labels) -> Phrase:
    """Return what variants are compared with: only weights without quantization are the unquantized model."""
    references = {config.config for config in summary.configs if config.is_reference}
    variants = {variant.variant for variant in references}
    return (
        say("the unquantized model")
        if baseline.variant in variants
        else say(Name(labels[baseline]))
    )


def _within(summary: StudySummary) -> str:
    return f"within the {_margin(summary):g}-nat margin"


def behaviour_lead(found: Behaviour, summary: StudySummary) -> Lead | None:
    """Answer a study of quality alone; None where nothing was judged."""
    judged_rows = [
        (row, found.equivalence[row.name])
        for row in summary.quality
        if row.name in found.equivalence
    ]
    if not judged_rows:
        return None
    labels = Labels.of(summary, MAX_NAME)
    baselines = dict.fromkeys(judged.baseline for _, judged in judged_rows)
    named = dict.fromkeys(_named_baseline(summary, baseline, labels) for baseline in baselines)
    of = listing(list(named), "or")
    alike = [row for row, judged in judged_rows if judged.verdict == "equivalent"]
    different = sum(judged.verdict == "different" for _, judged in judged_rows)
    open_ones = len(judged_rows) - len(alike) - different
    others = [*_different(different), *_open(open_ones)]
    if not alike:
        return Lead(
            say("No variant is shown to be equivalent to ", of, f" {_within(summary)}."),
            tuple(others),
        )
    shown = listing(name_phrases(labels[row.config] for row in alike))
    verb = "is" if len(alike) == 1 else "are"
    verdict = say(shown, f" {verb} equivalent to ", of, f" {_within(summary)}.")
    return Lead(verdict, tuple(others))


def _different(count: int) -> Iterator[Phrase]:
    if count:
        verb = "is" if count == 1 else "are"
        yield say(f"{plural(count, 'variant')} {verb} not equivalent.")


def _open(count: int) -> Iterator[Phrase]:
    if count:
        verb = "is" if count == 1 else "are"
        yield say(
            f"{plural(count, 'variant')} {verb} inconclusive: not enough text or probability mass to tell."
        )


def behaviour_section(found: Behaviour, summary: StudySummary) -> Section:
    labels = Labels.of(summary, MAX_NAME)
    blocks = [*_floors(found), _table(found, summary, labels)]
    blocks.append(Details("What the figures of behaviour mean", bullets(_definitions(summary))))
    return Section(say("Behaviour"), tuple(blocks), in_terminal=True)


def _margin(summary: StudySummary) -> float:
    assert summary.study.quality is not None  # nothing was found otherwise
    return summary.study.quality.equivalence_margin


def _floors(found: Behaviour) -> Iterator[Block]:
    yield paragraph("Each against its own other start, the noise floor:")
    yield table(
        found.floors,
        words_column("Config", lambda floor: Name(floor.config.name)),
        number_column("KL mean", NATS, lambda floor: quantity(floor.divergence, NATS)),
    )


def _table(found: Behaviour, summary: StudySummary, labels: Labels) -> Table:
    judged = [
        (row.config, found.equivalence[row.name])
        for row in summary.quality
        if row.name in found.equivalence
    ]
    return table(
        judged,
        words_column("Config", lambda row: Name(labels[row[0]])),
        number_column("Beyond the floor", NATS, lambda row: quantity(row[1].excess, NATS)),
        words_column("Verdict", lambda row: row[1].verdict),
    )


def _definitions(summary: StudySummary) -> Iterator[Phrase]:
    yield say(
        strong("Noise floor"),
        ": the mean KL divergence of a config from itself when only what should not matter is changed. Another start "
        "is asked for eight windows. The floor that counts is the baseline's on its own engine; without one it is 0.",
    )
    yield say(
        strong("Verdict"),
        f": equivalent if the divergence exceeds that floor by less than {_margin(summary):g} nats with the study's "
        "confidence, whatever the missing probability mass may add. Different if it certainly exceeds it by more. "
        "Otherwise inconclusive: not enough text, or not enough probability mass, to tell.",
    )


VERDICTS = {
    "more": "breaks more",
    "fewer": "breaks fewer",
    "no difference found": "no difference found",
    "inconclusive": "inconclusive",
}


def turn_behaviour_sentences(found: Conversations, summary: StudySummary) -> Iterator[Phrase]:
    """For the answer above all tables: which variants break more conversations than the unquantized model."""
    labels = Labels.of(summary, MAX_NAME)
    by_config = {row.config: row for row in found.rows}
    for row in found.rows:
        if row.against is not None:
            yield _compared(row, row.against, by_config[row.against.baseline], labels)


def _compared(
    row: ConversationShare, against: TurnComparison, baseline: ConversationShare, labels: Labels
) -> Phrase:
    """`w4 breaks more conversations than the unquantized model (7 of 24 valid to the end, unquantized: 13 of 24)`"""
    begin = f"JSON and tool calls over {plural(row.turns, 'turn')}: "
    counts = f"({_valid(row)} valid to the end, unquantized: {_valid(baseline)}"
    if against.verdict == "inconclusive":
        return say(
            begin, Name(labels[row.config]), f" is inconclusive {counts}): a larger model can tell."
        )
    sure = f"{counts}; p = {against.flips.p_value:.2g})."
    if against.verdict == "no difference found":
        return say(
            begin,
            "no difference found between ",
            Name(labels[row.config]),
            f" and the unquantized model {sure}",
        )
    words = f"{VERDICTS[against.verdict]} conversations than the unquantized model"
    return say(begin, Name(labels[row.config]), f" {words} {sure}")


def turn_behaviour_section(found: Conversations, summary: StudySummary) -> Section:
    labels = Labels.of(summary, MAX_NAME)
    first = found.rows[0]
    basis = small_print(
        f"{first.conversations} scripted conversations of {plural(first.turns, 'turn')}, half of them extractions, "
        "half tool calls, each with two examples; greedy answers of one line. The turns before are in the prompt with "
        "the script's own answers, so that every config is asked the same. A conversation ends at its first fault."
    )
    blocks: tuple[Block, ...] = (
        *bullets(turn_behaviour_sentences(found, summary)),
        _turn_table(found.rows, labels),
        basis,
        Details("What the figures of turns mean", bullets(_turn_definitions())),
    )
    return Section(say("Turns until invalid JSON"), blocks, in_terminal=True)


def _valid(row: ConversationShare) -> str:
    return f"{row.valid} of {row.conversations}"


def _turn_table(rows: tuple[ConversationShare, ...], labels: Labels) -> Table:
    return table(
        rows,
        words_column("Config", lambda row: Name(labels[row.config])),
        words_column("Never broke", _valid),
        number_column(
            "Broken here alone",
            Unit.COUNT,
            lambda row: row.against.flips.lost if row.against else None,
        ),
        number_column(
            "Valid here alone",
            Unit.COUNT,
            lambda row: row.against.flips.gained if row.against else None,
        ),
        words_column("p", lambda row: f"{row.against.flips.p_value:.2g}" if row.against else None),
        words_column("Verdict", lambda row: VERDICTS[row.against.verdict] if row.against else None),
        drop_empty=True,
    )


def _turn_definitions() -> Iterator[Phrase]:
    yield say(
        strong("Never broke"),
        ": a conversation breaks at its first answer that is not the JSON object or tool call that was asked for: not "
        "JSON, a key too few or too many, a value of the wrong kind, an unknown tool. Whether values are right is not "
        "judged.",
    )
    yield say(
        strong("p"),
        ": exact test of pairs (McNemar) on the same conversations of the unquantized model on the same engine, "
        "corrected for the number of variants (Holm).",
    )
    yield say(
        strong("Verdict"),
        ": no difference found does not prove that there is none. Inconclusive: fewer than a quarter of the "
        "unquantized model's own conversations are valid to the end.",
    )

"""The report's section and sentences on the gain of drafting tokens ahead."""

from collections.abc import Iterator

from bitbench.analysis.results.summary import StudySummary
from bitbench.features.speculation.computing import Speculation, Speculations
from bitbench.reports.document.model import (
    Block,
    Details,
    Name,
    Phrase,
    Quantity,
    Section,
    Table,
    Unit,
)
from bitbench.reports.document.numbers import make_quantity, make_ratio
from bitbench.reports.document.words import (
    MAX_NAME,
    build_table,
    bullets,
    format_list,
    list_names,
    make_number_column,
    make_ratio_column,
    make_words_column,
    say,
    strong,
)
from bitbench.reports.labels import Labels, group_by


def speculation_sentences(speculations: Speculations, summary: StudySummary) -> Iterator[Phrase]:
    """Yield sentences for the report's answer: by workload, which configs gain from drafts."""
    labels = Labels.of(summary, MAX_NAME)
    by_workload = group_by(speculations.rows, lambda row: row.workload)
    for workload, rows in by_workload.items():
        by_verdict = group_by(rows, _judge_gain)
        for verdict, words in (("pays", "is faster"), ("costs", "is slower")):
            gains = []
            for row in by_verdict.get(verdict, ()):
                gains.append(say(Name(labels[row.config]), " ", make_ratio(row.gain)))
            if gains:
                yield say(
                    "Speculation on ",
                    Name(workload),
                    f" {words} than the same without: ",
                    format_list(gains),
                    ".",
                )
        tied = [labels[row.config] for row in by_verdict.get("inconclusive", ())]
        if tied:
            yield say(
                "Speculation on ",
                Name(workload),
                ": the difference is not significant for ",
                format_list(list_names(tied)),
                ".",
            )
    yield from _iter_variant_sentences(speculations, labels)


def speculation_section(speculations: Speculations, summary: StudySummary) -> Section:
    """Build the section on the gain of drafting: sentences, a table and definitions."""
    blocks: tuple[Block, ...] = (
        *bullets(speculation_sentences(speculations, summary)),
        _build_table(speculations, Labels.of(summary, MAX_NAME)),
        Details("What the figures of speculation mean", bullets(_iter_definitions())),
    )
    return Section(say("What speculation gains"), blocks, in_terminal=True)


def _iter_variant_sentences(speculations: Speculations, labels: Labels) -> Iterator[Phrase]:
    """Yield the variants whose acceptance length differs from the unquantized model's."""
    for row in speculations.rows:
        ratio = row.against_unquantized
        if ratio is not None and ratio.excludes(1):
            length = "longer" if ratio.value > 1 else "shorter"
            words = f": accepted drafts are {length} with "
            than = say(" than with the unquantized model (", make_ratio(ratio), ").")
            yield say("Speculation on ", Name(row.workload), words, Name(labels[row.config]), than)


def _judge_gain(row: Speculation) -> str | None:
    """Return whether drafting pays, or None if its gain is unknown."""
    if row.gain is None or row.acceptance_length is None:
        return None
    if not row.gain.excludes(1):
        return "inconclusive"
    return "pays" if row.gain.value > 1 else "costs"


def _build_table(speculations: Speculations, labels: Labels) -> Table:
    return build_table(
        speculations.rows,
        make_words_column("Workload", lambda row: Name(row.workload)),
        make_words_column("Config", lambda row: Name(labels[row.config])),
        make_number_column("Accepted", Unit.NONE, _format_accepted, intervals_from=0),
        make_ratio_column("Measured gain", lambda row: make_ratio(row.gain)),
        make_words_column("Verdict", _judge_gain),
        drop_empty=True,
    )


def _format_accepted(row: Speculation) -> Quantity | Phrase:
    if row.acceptance_length is None:
        return say("no draft counted")
    return make_quantity(row.acceptance_length, Unit.NONE) or say(None)


def _iter_definitions() -> Iterator[Phrase]:
    yield say(
        strong("Accepted"),
        ": tokens of a step that begins with a draft: those of the draft that are kept, and the "
        "one that follows them; by the engine's counters, mean and interval over starts.",
    )
    yield say(
        strong("Measured gain"),
        ": time per output token without drafts / with drafts, the same weights and settings in "
        "the same blocks.",
    )

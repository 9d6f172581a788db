"""What drafting tokens ahead gains, and the acceptance by variant."""

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
from bitbench.reports.document.numbers import quantity, times
from bitbench.reports.document.words import (
    MAX_NAME,
    bullets,
    listing,
    name_phrases,
    number_column,
    ratio_column,
    say,
    strong,
    table,
    words_column,
)
from bitbench.reports.labels import Labels


def speculation_sentences(found: Speculations, summary: StudySummary) -> Iterator[Phrase]:
    """For the answer above all tables: on each workload, where it pays and where it does not."""
    labels = Labels.of(summary, MAX_NAME)
    for workload in dict.fromkeys(row.workload for row in found.rows):
        own = [row for row in found.rows if row.workload == workload]
        for verdict, words in (("pays", "is faster"), ("costs", "is slower")):
            gains = [
                say(Name(labels[row.config]), " ", times(row.gain))
                for row in own
                if _verdict(row) == verdict
            ]
            if gains:
                yield say(
                    "Speculation on ",
                    Name(workload),
                    f" {words} than the same without: ",
                    listing(gains),
                    ".",
                )
        tied = [labels[row.config] for row in own if _verdict(row) == "inconclusive"]
        if tied:
            yield say(
                "Speculation on ",
                Name(workload),
                ": the difference is not significant for ",
                listing(name_phrases(tied)),
                ".",
            )
    yield from _by_variant(found, labels)


def speculation_section(found: Speculations, summary: StudySummary) -> Section:
    labels = Labels.of(summary, MAX_NAME)
    blocks: list[Block] = [*bullets(speculation_sentences(found, summary)), _table(found, labels)]
    blocks.append(Details("What the figures of speculation mean", bullets(_definitions())))
    return Section(say("What speculation gains"), tuple(blocks), in_terminal=True)


def _by_variant(found: Speculations, labels: Labels) -> Iterator[Phrase]:
    """Of quantized variants whose drafts are accepted otherwise than the unquantized model's."""
    for row in found.rows:
        ratio = row.against_unquantized
        if ratio is not None and ratio.excludes(1):
            words = f": accepted drafts are {'longer' if ratio.value > 1 else 'shorter'} with "
            than = say(" than with the unquantized model (", times(ratio), ").")
            yield say("Speculation on ", Name(row.workload), words, Name(labels[row.config]), than)


def _verdict(row: Speculation) -> str | None:
    if row.gain is None or row.acceptance_length is None:
        return None
    if not row.gain.excludes(1):
        return "inconclusive"
    return "pays" if row.gain.value > 1 else "costs"


def _table(found: Speculations, labels: Labels) -> Table:
    return table(
        found.rows,
        words_column("Workload", lambda row: Name(row.workload)),
        words_column("Config", lambda row: Name(labels[row.config])),
        number_column("Accepted", Unit.NONE, _accepted, intervals_from=0),
        ratio_column("Measured gain", lambda row: times(row.gain)),
        words_column("Verdict", _verdict),
        drop_empty=True,
    )


def _accepted(row: Speculation) -> Quantity | Phrase:
    if row.acceptance_length is None:
        return say("no draft counted")
    return quantity(row.acceptance_length, Unit.NONE) or say(None)


def _definitions() -> Iterator[Phrase]:
    yield say(
        strong("Accepted"),
        ": tokens of a step that begins with a draft: those of the draft that are kept, and the one that follows them; "
        "by the engine's counters, mean and interval over starts.",
    )
    yield say(
        strong("Measured gain"),
        ": time per output token without drafts / with drafts, the same weights and settings in the same blocks.",
    )

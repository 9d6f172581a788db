"""What drafting tokens ahead gains, measured and predicted; the acceptance by variant, and from where it pays."""

from collections.abc import Iterator

from bitbench.core.found.summary import Interval, Ratio, Speculation, StudySummary
from bitbench.report.document.model import Block, Details, Name, Phrase, Quantity, Section, Table, Unit
from bitbench.report.document.tables import number_column, ratio_column, table, words_column
from bitbench.report.document.text import MAX_NAME
from bitbench.report.document.words import bullets, listing, names, say, small_print, strong
from bitbench.report.labels import Labels
from bitbench.report.quantities import times, with_interval

WIDE = 110  # characters of a terminal from which there is room for what explains the gain


def speculation_sentences(summary: StudySummary) -> Iterator[Phrase]:
    """For the answer above all tables: on each workload, where it pays and where it does not."""
    labels = Labels.of(summary, MAX_NAME)
    for workload in dict.fromkeys(one.workload for one in summary.speculation):
        own = [one for one in summary.speculation if one.workload == workload]
        for verdict, words in (("pays", "is faster"), ("costs", "is slower")):
            alike = [one for one in own if _verdict(one) == verdict]
            if alike:
                yield say(
                    "Speculation on ",
                    Name(workload),
                    f" {words} than the same without: ",
                    listing(_gains(alike, labels)),
                    ".",
                )
        tied = [labels[one.contender] for one in own if _verdict(one) == "inconclusive"]
        if tied:
            yield say(
                "Speculation on ", Name(workload), ": the difference is not significant for ", listing(names(tied)), "."
            )
    yield from _by_variant(summary, labels)


def speculation_section(summary: StudySummary) -> Section | None:
    """None where drafting is no axis of the study."""
    if not summary.speculation:
        return None
    labels = Labels.of(summary, MAX_NAME)
    blocks: list[Block] = [*bullets(speculation_sentences(summary)), _table(summary, labels)]
    if any(one.predicted is None and one.tokens_per_step for one in summary.speculation):
        blocks.append(small_print(_UNKNOWN_COSTS))
    blocks.append(Details("What the figures of speculation mean", bullets(_definitions())))
    return Section(say("What speculation gains"), tuple(blocks), in_terminal=True)


_UNKNOWN_COSTS = (
    "At most: what follows from the acceptance alone. The cost of checking a draft is known where the study also has "
    "the same workload with as many streams as a draft and the token after it; that of a draft model where it is a "
    "contender of the study."
)


def _gains(rows: list[Speculation], labels: Labels) -> list[Phrase]:
    return [say(Name(labels[one.contender]), " ", times(one.gain)) for one in rows]


def _by_variant(summary: StudySummary, labels: Labels) -> Iterator[Phrase]:
    """Of quantized variants whose drafts are accepted otherwise than the unquantized model's."""
    for one in summary.speculation:
        ratio = one.against_unquantized
        if ratio is not None and _excludes_one(ratio):
            words = "longer" if ratio.value > 1 else "shorter"
            yield say(
                "Speculation on ",
                Name(one.workload),
                ": accepted drafts are ",
                f"{words} with ",
                Name(labels[one.contender]),
                " than with the unquantized model (",
                times(ratio),
                ").",
            )


def _verdict(one: Speculation) -> str | None:
    if one.gain is None or one.acceptance_length is None:
        return None
    if not _excludes_one(one.gain):
        return "inconclusive"
    return "pays" if one.gain.value > 1 else "costs"


def _excludes_one(ratio: Ratio) -> bool:
    return ratio.interval is not None and not ratio.interval.low <= 1 <= ratio.interval.high


def _table(summary: StudySummary, labels: Labels) -> Table:
    return table(
        summary.speculation,
        words_column("Workload", lambda one: Name(one.workload)),
        words_column("Contender", lambda one: Name(labels[one.contender])),
        number_column("Accepted", Unit.NONE, _accepted, intervals_from=0),
        number_column("Break-even", Unit.NONE, lambda one: _figure(one.break_even, one.break_even_interval)),
        ratio_column("Measured gain", lambda one: times(one.gain)),
        number_column("Predicted", Unit.RATIO, _predicted),
        words_column("Verdict", _verdict),
        number_column("Acceptance", Unit.SHARE, lambda one: one.acceptance_rate, shown_from=WIDE),
        number_column("Drafted", Unit.SHARE, lambda one: one.drafted_share, shown_from=WIDE),
        number_column("Check", Unit.RATIO, lambda one: one.verify_cost, shown_from=WIDE),
        number_column("Draft", Unit.RATIO, lambda one: one.draft_cost or None, shown_from=WIDE),
        drop_empty=True,
    )


def _accepted(one: Speculation) -> Quantity | Phrase:
    if one.acceptance_length is None:
        return say("no draft counted")
    return _figure(one.acceptance_length.mean, one.acceptance_length.interval) or say(None)


def _figure(value: float | None, interval: Interval | None) -> Quantity | None:
    return None if value is None else with_interval(value, Unit.NONE, interval)


def _predicted(one: Speculation) -> Quantity | Phrase | None:
    if one.predicted is not None:
        return Quantity(one.predicted, Unit.RATIO)
    return None if one.tokens_per_step is None else say("at most ", Quantity(one.tokens_per_step, Unit.RATIO))


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
    yield say(
        strong("Predicted"),
        ": tokens per step / cost of a step. A drafted step costs the steps of the draft model (",
        strong("Draft"),
        ", of one; none for n-grams) and one that checks the whole draft (",
        strong("Check"),
        "), which is what the same contender without drafts takes for as many streams at once. Both are measured "
        "without speculation.",
    )
    yield say(
        strong("Break-even"),
        ": how many tokens a drafted step must give to take no longer than plain steps, from the measured gain. "
        "Drafting pays where more are accepted.",
    )
    yield say(strong("Acceptance"), ": share of drafted tokens. ", strong("Drafted"), ": share of steps with a draft.")

"""What is said of cards: the check of one, and many side by side, by their share of the machine's roof."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from bitbench.features.cards.types import (
    CardComparison,
    CardEntry,
    CardGroup,
    CardPhase,
    Checked,
    NotCompared,
    Verification,
)
from bitbench.records.profile import Phase
from bitbench.reports.document.model import Bullets, Document, Name, Phrase, Quantity, Section, Table, Unit
from bitbench.reports.document.numbers import quantity
from bitbench.reports.document.words import (
    Words,
    bullets,
    listing,
    name_phrases,
    number_column,
    paragraph,
    plural,
    say,
    strong,
    table,
    words_column,
)
from bitbench.study.metrics import find_metric
from bitbench.util.errors import ExitCode

MOST_NAMED = 5
MOST_ROWS = 20


def cards_document(found: CardComparison) -> Document:
    return Document(
        say(plural(found.cards, "card")),
        (paragraph(*_answer(found)),),
        (
            *(Section(_title(group), (_table(group), *bullets(_says(group)))) for group in found.groups),
            *_section("Not compared", bullets(_apart(found.not_compared))),
            *_section("Left out", bullets(say(Name(card.card), ": ", card.why) for card in found.left_out)),
        ),
    )


def _section(title: str, blocks: tuple[Bullets, ...]) -> list[Section]:
    return [Section(say(title), blocks)] if blocks else []


def _answer(found: CardComparison) -> Iterator[Words]:
    if not found.groups:
        yield "No two cards have a point in common that may be compared."
        return
    yield f"{plural(len(found.groups), 'point')} can be compared between cards. "
    yield "Machines differ, so a share of the machine's own roof is what is compared, not the speed itself."
    without = {entry.card for group in found.groups for entry in group.entries if not entry.phases}
    if without:
        yield f" {plural(len(without), 'card')} without a measured roof cannot be compared so: `bitbench explain` "
        yield "measures it on the machine of the study, then publish again."


def _title(group: CardGroup) -> Phrase:
    shape = json.loads(group.shape)
    lengths = [shape["input_tokens"], shape["output_tokens"]]
    tokens_in, tokens_out = (length if isinstance(length, int) else "varying" for length in lengths)
    return say(
        Name(f"{group.model}/{group.recipe} @ {group.engine}"),
        f": concurrency {shape['concurrency']}, {tokens_in} tokens in, {tokens_out} out",
    )


def _table(group: CardGroup) -> Table:
    metric = find_metric(group.primary_metric)
    label, unit = (metric.label, metric.unit) if metric else (group.primary_metric, Unit.NONE)
    return table(
        group.entries[:MOST_ROWS],
        words_column("Machine", lambda entry: entry.machine),
        number_column("Decode, of the roof", Unit.SHARE, lambda entry: _share(entry, Phase.DECODE), intervals_from=0),
        number_column("Prefill, of the roof", Unit.SHARE, lambda entry: _share(entry, Phase.PREFILL), shown_from=100),
        number_column(label, unit, lambda entry: quantity(entry.figure, unit)),
        words_column("Card", lambda entry: Name(entry.card)),
        words_column("Signed by", lambda entry: entry.signer, shown_from=140),
        drop_empty=True,
    )


def _phase(entry: CardEntry, phase: Phase) -> CardPhase | None:
    return next((share for share in entry.phases if share.phase is phase), None)


def _share(entry: CardEntry, phase: Phase) -> Quantity | None:
    found = _phase(entry, phase)
    return quantity(found.share, Unit.SHARE) if found else None


def _says(group: CardGroup) -> Iterator[Words]:
    """Who is ahead by decode, where the intervals lie apart; what was not checked."""
    known = [(entry, found) for entry in group.entries if (found := _phase(entry, Phase.DECODE)) is not None]
    if len(known) > 1:
        (best, first), *others = sorted(known, key=lambda pair: -pair[1].share.value)
        ahead = [
            entry for entry, phase in others if phase.share.high is not None and first.share.is_above(phase.share.high)
        ]
        if ahead:
            yield say(
                Name(best.card), " uses significantly more of its roof than ",
                listing(name_phrases(entry.card for entry in ahead), most=MOST_NAMED), ".",
            )  # fmt: skip
        if len(ahead) < len(others):
            yield f"{plural(len(others) - len(ahead), 'card')} undecided: the intervals overlap."
    if len(group.entries) > MOST_ROWS:
        yield f"The table has the first {MOST_ROWS} of {len(group.entries):,}; --json has all."
    if group.unknown:
        facts = ", ".join(fact.value for fact in group.unknown)
        yield f"Not checked, as no card says it: {facts}."


def _apart(points: Sequence[NotCompared]) -> Iterator[Words]:
    """Once per reason, with the number of points and an example."""
    alone = sum(not point.differs for point in points)
    if alone:
        yield f"{plural(alone, 'point')}: no other card has it."
    reasons = Counter(tuple(sorted(point.differs)) for point in points if point.differs)
    for facts, count in reasons.most_common():
        example = next(point for point in points if tuple(sorted(point.differs)) == facts)
        both = [(fact, *example.differs[fact]) for fact in facts]
        said = [say(fact.value, ": ", Name(own), " / ", Name(other)) for fact, own, other in both]
        yield say(
            f"{plural(count, 'point')} refused, as facts differ (", Name(example.card), ": ", listing(said), "); ",
            " ".join(f"--allow {fact.value}" for fact in facts), " compares them all the same.",
        )  # fmt: skip


ID_LENGTH = 16  # of 64 characters: enough to tell two cards apart in words


def verification_document(found: Verification) -> Document:
    rows = "no request rows" if found.requests is None else plural(found.requests, "request row")
    held = f"{plural(found.trials, 'trial')}, {plural(found.instances, 'engine start')}, {rows}"
    signed = "not signed" if found.signed_by is None else say("signed by ", Name(found.signer or found.signed_by))
    short_id = found.card_id[:ID_LENGTH]
    advice = "Do not use it; ask its maker for the study folder." if found.exit_code is ExitCode.FAILED else ""
    return Document(
        say("Card of ", Name(found.study)),
        (
            paragraph(strong(_verdict(found)), " ", advice),
            paragraph(f"{held}; made by bitbench ", Name(found.bitbench), "; ", signed, "; id ", short_id),
        ),
        (
            Section(say("Recomputed"), bullets(_checked(check) for check in found.checks)),
            *([Section(say("Missing"), bullets(f"{gap}." for gap in found.gaps))] if found.gaps else []),
            Section(say("What a card cannot show"), bullets(f"{sentence}." for sentence in found.cannot_check)),
        ),
    )


def _verdict(found: Verification) -> str:
    if any(check.different_count for check in found.checks):
        return "Figures of this card do not follow from its records."
    if any(check.unchecked for check in found.checks) or found.gaps:
        return "No figure differs, but not all could be recomputed."
    return "Every figure follows from the records in the card."


def _checked(check: Checked) -> Words:
    said = f"{check.check.value}: {plural(check.figures, 'figure')} compared, "
    said += "all equal" if not check.different_count else f"{check.different_count:,} differ"
    details = "; ".join(check.different)
    why = f"; not checked: {check.why_unchecked}" if check.why_unchecked else ""
    return f"{said}{f' ({details})' if details else ''}{why}."

"""What a check of an evidence card found: what follows from its records, what does not, and what no card can show."""

from collections.abc import Iterator

from bitbench.core.found.card import Checked, Verification
from bitbench.ground.exit_codes import ExitCode
from bitbench.report.document.model import Document, Name, Section
from bitbench.report.document.words import Words, bullets, paragraph, plural, say, strong

ID_LENGTH = 16  # of 64 characters: enough to tell two cards apart in words


def verification_document(found: Verification) -> Document:
    rows = "no request rows" if found.requests is None else plural(found.requests, "request row")
    held = f"{plural(found.trials, 'trial')}, {plural(found.instances, 'engine start')}, {rows}"
    signed = "not signed" if found.signed_by is None else say("signed by ", Name(found.signer or found.signed_by))
    short_id = found.card_id[:ID_LENGTH]
    return Document(
        say("Card of ", Name(found.study)),
        (
            paragraph(strong(_verdict(found)), " ", say(*_next(found))),
            paragraph(f"{held}; made by bitbench ", Name(found.bitbench), "; ", signed, "; id ", short_id),
        ),
        (
            Section(say("Recomputed"), bullets(_checked(one) for one in found.checks)),
            *([Section(say("Missing"), bullets(f"{gap}." for gap in found.gaps))] if found.gaps else []),
            Section(say("What a card cannot show"), bullets(f"{sentence}." for sentence in found.cannot_check)),
        ),
    )


def _verdict(found: Verification) -> str:
    if any(one.different_count for one in found.checks):
        return "Figures of this card do not follow from its records."
    if any(one.unchecked for one in found.checks) or found.gaps:
        return "No figure differs, but not all could be recomputed."
    return "Every figure follows from the records in the card."


def _next(found: Verification) -> Iterator[Words]:
    if found.exit_code is ExitCode.FAILED:
        yield "Do not use it; ask its maker for the study folder."


def _checked(one: Checked) -> Words:
    said = f"{one.check.value}: {plural(one.figures, 'figure')} compared, "
    said += "all equal" if not one.different_count else f"{one.different_count:,} differ"
    details = "; ".join(one.different)
    why = f"; not checked: {one.why_unchecked}" if one.why_unchecked else ""
    return f"{said}{f' ({details})' if details else ''}{why}."

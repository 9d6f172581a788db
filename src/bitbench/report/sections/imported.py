"""What a reader of an imported study must know before trusting its figures."""

from bitbench.core.found.summary import StudySummary
from bitbench.core.recorded.imported import ImportSource
from bitbench.report.document.model import Name, Paragraph, Phrase, Section
from bitbench.report.document.words import bullets, joined, listing, names, paragraph, say, strong

SHOWN_HASH = 16  # hexadecimal digits: enough to tell files apart by eye


def source(origin: ImportSource) -> Phrase:
    """`result.json` of vllm"""
    return say(listing(names(file.name for file in origin.files)), f" of {origin.tool}")


def imported(origin: ImportSource) -> Paragraph:
    return paragraph(strong("Imported"), ", not measured by bitbench: ", source(origin), ".")


def imported_section(summary: StudySummary) -> Section | None:
    """None for a study that bitbench ran."""
    origin = summary.imported_from
    if origin is None:
        return None
    hashes = [say(Name(file.name), " sha256 ", Name(file.sha256[:SHOWN_HASH])) for file in origin.files]
    rule = "Figures are those of the tool, by its own definitions; what it does not say is –."
    return Section(say("What was imported"), bullets([say("Files: ", joined(hashes, "; "), "."), rule, *origin.notes]))

"""That bitbench did not measure what is shown, and who did."""

from bitbench.core.recorded.imported import ImportSource
from bitbench.report.document.model import Paragraph, Phrase
from bitbench.report.document.words import listing, names, paragraph, say, strong


def source(origin: ImportSource) -> Phrase:
    """`result.json` of vllm"""
    return say(listing(names(file.name for file in origin.files)), f" of {origin.tool}")


def imported(origin: ImportSource) -> Paragraph:
    return paragraph(strong("Imported"), ", not measured by bitbench: ", source(origin), ".")

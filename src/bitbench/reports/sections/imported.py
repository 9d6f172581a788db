"""That bitbench did not measure what is shown, and who did."""

from bitbench.reports.document.model import Paragraph, Phrase
from bitbench.reports.document.words import listing, names, paragraph, say, strong
from bitbench.study.imported import ImportSource


def source(origin: ImportSource) -> Phrase:
    """`result.json` of vllm"""
    return say(listing(names(file.name for file in origin.files)), f" of {origin.tool}")


def imported(origin: ImportSource) -> Paragraph:
    return paragraph(strong("Imported"), ", not measured by bitbench: ", source(origin), ".")

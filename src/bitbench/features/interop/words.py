"""What a reader of an imported study must know before trusting its figures."""

from bitbench.analysis.results.summary import StudySummary
from bitbench.records.folder import StudyRecords
from bitbench.reports.document.model import Name, Section
from bitbench.reports.document.words import bullets, joined, say
from bitbench.study.plan import ImportSource

SHOWN_HASH = 16  # hexadecimal digits: enough to tell files apart by eye


def imported_section_source(of: StudyRecords) -> ImportSource | None:
    """None for a study that bitbench ran."""
    return of.plan.imported_from


def imported_section(origin: ImportSource, _: StudySummary) -> Section:
    hashes = [
        say(Name(file.name), " sha256 ", Name(file.sha256[:SHOWN_HASH])) for file in origin.files
    ]
    rule = "Figures are those of the tool, by its own definitions; what it does not say is –."
    return Section(
        say("What was imported"),
        bullets([say("Files: ", joined(hashes, "; "), "."), rule, *origin.notes]),
    )

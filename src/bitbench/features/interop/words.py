"""The report section that names the source of an imported study and its limits."""

from bitbench.analysis.results.summary import StudySummary
from bitbench.records.folder import StudyRecords
from bitbench.reports.document.model import Name, Section
from bitbench.reports.document.words import bullets, join_phrases, say
from bitbench.study.plan import ImportSource

SHOWN_HASH = 16  # hexadecimal digits: enough to tell files apart by eye


def imported_section_source(records: StudyRecords) -> ImportSource | None:
    """Return the source of an imported study, or None if bitbench ran the study."""
    return records.plan.imported_from


def imported_section(origin: ImportSource, _: StudySummary) -> Section:
    """Build the section that names the imported files and what was assumed."""
    hashes = []
    for file in origin.files:
        hashes.append(say(Name(file.name), " sha256 ", Name(file.sha256[:SHOWN_HASH])))
    rule = "Figures are those of the tool, by its own definitions; what it does not say is –."
    files = say("Files: ", join_phrases(hashes, "; "), ".")
    return Section(say("What was imported"), bullets([files, rule, *origin.notes]))

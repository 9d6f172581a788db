"""What a reader of an imported study must know before trusting its figures."""

from bitbench.core.found.summary import StudySummary
from bitbench.core.recorded.imported import ImportSource
from bitbench.report.document.text import code, escape, listing

SHOWN_HASH = 16  # hexadecimal digits: enough to tell files apart by eye


def source(origin: ImportSource) -> str:
    """`result.json` of vllm"""
    return f"{listing([code(file.name) for file in origin.files])} of {escape(origin.tool)}"


def imported_section(summary: StudySummary) -> str:
    """Empty for a study that bitbench ran."""
    origin = summary.imported_from
    if origin is None:
        return ""
    hashes = "; ".join(f"{code(file.name)} sha256 {code(file.sha256[:SHOWN_HASH])}" for file in origin.files)
    lines = [
        f"- Files: {hashes}.",
        "- Figures are those of the tool, by its own definitions; what it does not say is `–`.",
        *(f"- {escape(note)}" for note in origin.notes),
    ]
    return "\n\n".join(["## What was imported", "\n".join(lines)])

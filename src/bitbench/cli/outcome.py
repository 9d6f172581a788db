"""What a person sees when a study has ended: its tables, and where the report is."""

from rich.console import Console

from bitbench.core.found.summary import StudySummary
from bitbench.lab.study import Lab
from bitbench.report.document.terminal import render
from bitbench.store.folder import StudyFolder


def show_outcome(lab: Lab, folder: StudyFolder, console: Console) -> StudySummary:
    """Write the report too."""
    summary = lab.summary(folder)
    document = lab.document(folder, summary)
    path = lab.report(folder, document)
    render(document, console)
    console.print(f"report: {path.with_name('index.html')}", highlight=False, soft_wrap=True, markup=False)
    return summary

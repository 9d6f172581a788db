"""report.md, and its figures as files beside it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bitbench.core.base import Json
from bitbench.core.found.summary import StudySummary
from bitbench.core.recorded.profile import OperatorProfile
from bitbench.report.charts.figure import Figure
from bitbench.report.document.text import escape
from bitbench.report.study import Records, Section, document

FILE_NAME = "report.md"
FIGURES = "figures"


def write_markdown(sections: Sequence[Section], folder: Path) -> Path:
    """Write report.md into `folder`, its figures into figures/, and say where it is."""
    from bitbench.report.charts.svg import svg

    (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    for old in (folder / FIGURES).glob("*.svg"):
        old.unlink()
    for figure in (figure for section in sections for figure in section.figures):
        (folder / _file(figure)).write_text(svg(figure), encoding="utf-8", newline="\n")
    path = folder / FILE_NAME
    path.write_text(text(sections), encoding="utf-8", newline="\n")
    return path


def markdown(summary: StudySummary, lock: Mapping[str, Json], profiles: Sequence[OperatorProfile] = ()) -> str:
    """The text of a report alone."""
    return text(document(summary, Records(lock, profiles=profiles)))


def text(sections: Sequence[Section]) -> str:
    return "\n\n".join(_with_figures(section) for section in sections) + "\n"


def _with_figures(section: Section) -> str:
    """Figures after the heading and what introduces them."""
    if not section.figures:
        return section.text
    heading, introduction, *rest = section.text.split("\n\n")
    pictures = [f"![{escape(one.title)}]({_file(one)})\n\n*{escape(one.caption)}*" for one in section.figures]
    return "\n\n".join([heading, introduction, *pictures, *rest])


def _file(figure: Figure) -> str:
    return f"{FIGURES}/{figure.name}.svg"

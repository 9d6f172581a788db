"""Every form of a report (Markdown, page, terminal) shows the figures that its document holds, and no other."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from bitbench.records.folder import StudyFolder
from bitbench.reports.document.html import render_html
from bitbench.reports.document.markdown import render_markdown
from bitbench.reports.document.model import Document, Quantity, Row, TableCell, Unit
from bitbench.reports.document.terminal import render_in_terminal
from bitbench.reports.write import StudyReport
from tests.support.report_figures import (
    Number,
    PageTables,
    Points,
    document_points,
    markdown_tables,
    numbers_in,
    numbers_of,
    points_of_tables,
    row_names,
    tables_of,
    terminal_rows,
)
from tests.support.study_folders import WRITERS, write_folder

STUDIES = ["why-int8", *WRITERS]


@pytest.fixture(params=STUDIES, scope="module")
def study(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def document(study: str, tmp_path_factory: pytest.TempPathFactory) -> Document:
    home = tmp_path_factory.mktemp(study)
    recorded = Path(__file__).parents[1] / "features" / "explain" / "data" / study
    folder = (
        StudyFolder.existing(recorded) if recorded.exists() else write_folder(study, home / study)
    )
    return StudyReport(folder, home).document


def says(text: str, point: TableCell) -> bool:
    """Every number of the point, in its order, and no other. Extremes that are equal are written once."""
    written, held = numbers_in(text), numbers_of(point)
    if isinstance(point, Quantity) and point.range == "extremes" and len(written) == 1:
        held = held[:1]
    return len(written) == len(held) and all(map(Number.is_like, written, held))


def assert_same(texts: Points, document: Document) -> None:
    assert_same_points(texts, document_points(document))


def assert_same_points(texts: Points, held: Points) -> None:
    """Each text says what the document holds, and nothing that it holds is missing."""
    assert texts.keys() == held.keys()
    different = {
        key: (texts[key], points)
        for key, points in held.items()
        if len(texts[key]) != len(points) or not all(map(says, texts[key], points))
    }
    assert not different


def test_report_md_says_what_the_document_holds(document: Document) -> None:
    assert_same(points_of_tables(markdown_tables(render_markdown(document))), document)


def test_index_html_says_what_the_document_holds(document: Document) -> None:
    assert_same(points_of_tables(PageTables(render_html(document, "0")).tables), document)


def printed(document: Document) -> list[list[str]]:
    console = Console(file=io.StringIO(), width=120, color_system=None)
    render_in_terminal(document, console)
    return terminal_rows(console.file.getvalue())  # type: ignore[attr-defined]


def numbers_of_row(row: Row) -> list[Number]:
    return [number for point in row.cells for number in numbers_of(point)]


def is_row(points: list[str], row: Row) -> bool:
    """A line of a terminal: the names of the row stand in it, and each of its numbers is one of the row's."""
    names = row_names(row).split(", ")
    numbers = [number for point in points if point not in names for number in numbers_in(point)]
    known = numbers_of_row(row)
    return set(names) <= {*points} and all(
        any(number.is_like(other) for other in known) for number in numbers
    )


def strangers(lines: list[list[str]], document: Document) -> list[list[str]]:
    """Lines that are no row of any table of the document."""
    rows = [row for _, table in tables_of(document) for row in table.rows]
    return [points for points in lines if not any(is_row(points, row) for row in rows)]


def test_the_terminal_says_what_the_document_holds(document: Document) -> None:
    lines = printed(document)
    assert lines
    assert not strangers(lines, document)


@pytest.mark.parametrize(
    ("text", "is_same"),
    [
        ("12.3 [11.9, 12.8] ms", True),
        ("12.34 [11.9, 12.8] ms", True),
        ("0.0123 [0.0119, 0.0128] s", True),
        ("12 ms", False),
        ("12.4 [11.9, 12.8] ms", False),
        ("12.3 [11.9, 12.9] ms", False),
        ("12.3 [11.9, 12.8] s", False),
        ("12.3 [12.8, 11.9] ms", False),
    ],
)
def test_a_figure_that_changed_would_be_seen(text: str, is_same: bool) -> None:
    assert says(text, Quantity(0.01234, Unit.SECONDS, 0.0119, 0.0128)) is is_same

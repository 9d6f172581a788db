"""Figures drawn in a process of their own."""

import subprocess
import sys

import pytest

from bitbench.reports import write
from bitbench.reports.charts.figure import Figure
from bitbench.reports.charts.rows import trials_figure
from bitbench.reports.document import html
from bitbench.reports.document.html import html_chart_svg
from bitbench.reports.labels import Labels
from bitbench.reports.write import Drawing
from tests.support.synthetic import demo_study, summarize


def figures() -> list[Figure]:
    summary = summarize(*demo_study()[:3])
    found = [trials_figure(summary, ranking, Labels.of(summary)) for ranking in summary.rankings]
    return [figure for figure in found if figure is not None]


def test_another_process_draws_what_this_one_would(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [html_chart_svg(figure) for figure in figures()]
    assert len(wanted) > 1
    monkeypatch.setattr(html, "html_chart_svg", None)  # so that nothing is drawn here
    with Drawing() as drawn:
        assert drawn.draw(figures()) == wanted


@pytest.mark.parametrize("command", [("true",), (sys.executable, "-c", "raise SystemExit(1)"), ("/no/such/program",)])
def test_without_that_process_this_one_draws(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "_COMMAND", command)
    with Drawing() as drawn:
        assert drawn.draw(figures()[:1]) == [html_chart_svg(figures()[0])]


def test_it_ends_with_its_context_although_nothing_was_drawn() -> None:
    with Drawing() as drawn:
        process = drawn._process
        assert process is not None
        assert process.poll() is None
    assert process.poll() is not None


def test_that_process_imports_no_more_than_it_needs() -> None:
    script = (
        "import sys, bitbench.reports.charts.svg_process\n"
        "print(*{name.partition('.')[0] for name in sys.modules} & {'pydantic', 'numpy', 'pyarrow', 'scipy', 'rich'})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"

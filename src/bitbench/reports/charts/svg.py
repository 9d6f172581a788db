"""Figures as files of their own, for Markdown: drawn as a page draws them, without a browser."""

from bitbench.reports.charts.figure import ROWS, Figure
from bitbench.reports.charts.style import LIGHT, config
from bitbench.reports.charts.svg_process import draw
from bitbench.study.base import Json

WIDTH = 760


def svg(figure: Figure, width: int = WIDTH) -> str:
    return draw(standing_alone(figure, width))


def standing_alone(figure: Figure, width: int = WIDTH) -> dict[str, Json]:
    """Its specification with all that a page gives it."""
    return {
        **figure.spec,
        "width": width,
        "padding": 16,
        "title": figure.title,
        "config": config(LIGHT),
        "datasets": {ROWS: figure.rows},
    }

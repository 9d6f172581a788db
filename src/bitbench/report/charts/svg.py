"""Figures as files of their own, for Markdown: drawn as a page draws them, without a browser."""

from bitbench.core.base import Json
from bitbench.report.charts.figure import ROWS, Figure
from bitbench.report.charts.style import LIGHT, config
from bitbench.report.charts.svg_process import draw

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

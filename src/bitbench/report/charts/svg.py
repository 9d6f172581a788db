"""Figures as files of their own, for Markdown: drawn as a page draws them, without a browser."""

import json

import vl_convert

from bitbench.report.charts.figure import ROWS, Figure
from bitbench.report.charts.style import LIGHT, config

VEGA_LITE = "6.4"  # of the versions that vl-convert brings, the one that altair writes
WIDTH = 760


def svg(figure: Figure, width: int = WIDTH) -> str:
    spec = {
        **figure.spec,
        "width": width,
        "padding": 16,
        "title": figure.title,
        "config": config(LIGHT),
        "datasets": {ROWS: figure.rows},
    }
    return str(vl_convert.vegalite_to_svg(json.dumps(spec), vl_version=VEGA_LITE)) + "\n"

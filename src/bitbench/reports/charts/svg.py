"""Draws figures as files, with vl-convert of the extra `figures`; a page draws its own without it."""

import json
import re
from importlib.util import find_spec

from bitbench.reports.charts.figure import ROWS
from bitbench.reports.document.model import Figure
from bitbench.reports.document.palette import LIGHT, figure_config
from bitbench.study.base import Json
from bitbench.util.errors import StoreError

VEGA_LITE = "6.4"  # of the versions that vl-convert brings, the newest
WIDTH = 760
_CLIP = re.compile(r'(id="clip|url\(#clip)(\d+)')


def can_draw_files() -> bool:
    """Return whether the extra `figures` is installed."""
    return find_spec("vl_convert") is not None


def figure_svg(figure: Figure, width: int = WIDTH) -> str:
    """Return a figure as it stands alone. Raises StoreError without the extra `figures`."""
    if not can_draw_files():
        raise StoreError(
            "a figure as a file needs vl-convert; `pip install 'bitbench[figures]'` installs it"
        )
    import vl_convert

    specification = json.dumps(_figure_file_spec(figure, width), sort_keys=True)
    return (
        _renumber_clips(str(vl_convert.vegalite_to_svg(specification, vl_version=VEGA_LITE))) + "\n"
    )


def _renumber_clips(svg: str) -> str:
    """Count a drawing's clip paths from 1. Vega counts through all drawings of a process, so their order would show."""
    numbers = sorted({int(number) for _, number in _CLIP.findall(svg)})
    places = {number: place for place, number in enumerate(numbers, start=1)}
    return _CLIP.sub(lambda found: f"{found[1]}{places[int(found[2])]}", svg)


def _figure_file_spec(figure: Figure, width: int = WIDTH) -> dict[str, Json]:
    """Return its specification with all that a page gives it."""
    return {
        **figure.spec,
        "width": width,
        "padding": 16,
        "title": figure.title,
        "config": figure_config(LIGHT),
        "datasets": {ROWS: figure.rows},
    }

"""Charts as SVG files, drawn by vl-convert of the extra `figures`. A page draws its own."""

import json
import re
from importlib.util import find_spec

from bitbench.reports.charts.figure import ROWS
from bitbench.reports.document.model import Figure
from bitbench.reports.document.palette import LIGHT, make_vega_config
from bitbench.study.base import Json
from bitbench.util.errors import StoreError

VEGA_LITE = "6.4"  # the newest version that vl-convert brings
WIDTH = 760
_CLIP = re.compile(r'(id="clip|url\(#clip)(\d+)')


def has_svg_renderer() -> bool:
    """Return whether the extra `figures` is installed."""
    return find_spec("vl_convert") is not None


def render_svg(figure: Figure, width: int = WIDTH) -> str:
    """Return a chart as an SVG file. Raise StoreError without the extra `figures`."""
    if not has_svg_renderer():
        raise StoreError(
            "a figure as a file needs vl-convert; `pip install 'bitbench[figures]'` installs it"
        )
    import vl_convert

    specification = json.dumps(_make_file_spec(figure, width), sort_keys=True)
    svg = str(vl_convert.vegalite_to_svg(specification, vl_version=VEGA_LITE))
    return f"{_rename_clips(svg)}\n"


def _rename_clips(svg: str) -> str:
    """Number the clip paths of a drawing from 1.

    Vega numbers them through all drawings of a process, so their order would show.
    """
    numbers = sorted({int(number) for _, number in _CLIP.findall(svg)})
    return _CLIP.sub(lambda match: f"{match[1]}{numbers.index(int(match[2])) + 1}", svg)


def _make_file_spec(figure: Figure, width: int = WIDTH) -> dict[str, Json]:
    """Return the specification of a chart with everything that a page would add."""
    return {
        **figure.spec,
        "width": width,
        "padding": 16,
        "title": figure.title,
        "config": make_vega_config(LIGHT),
        "datasets": {ROWS: figure.rows},
    }

"""Draws figures: `python -m bitbench.reports.charts.svg_process`, a list of specifications on stdin, of SVG on stdout.

V8 and the scripts that draw take most of a second to load: that is done before the figures are asked for. What draws in
the process of a command comes here, too. Imports no more than it needs.
"""

import json
import sys
from typing import Any

import vl_convert

from bitbench.util.child_processes import read_child_frame, write_child_frame

VEGA_LITE = "6.4"  # of the versions that vl-convert brings, the newest
EMPTY = {"mark": "point", "data": {"values": []}}


def draw_svg(specification: dict[str, Any]) -> str:
    return str(vl_convert.vegalite_to_svg(json.dumps(specification, sort_keys=True), vl_version=VEGA_LITE)) + "\n"


def main() -> None:
    draw_svg(EMPTY)
    specifications = json.loads(read_child_frame(sys.stdin.buffer))
    write_child_frame(
        sys.stdout.buffer, json.dumps([draw_svg(specification) for specification in specifications]).encode()
    )


if __name__ == "__main__":
    main()

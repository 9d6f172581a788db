"""The colors and lines of charts, by the roles that specifications name.

A page uses CSS variables as colors, so that light, dark and print need no new drawing. A file of
its own uses the light colors. Readers with a color deficiency can distinguish the colors of both
palettes. The colors follow Okabe and Ito, made darker or lighter: each has a contrast of at least
3 to its background.
"""

from collections.abc import Mapping

from bitbench.study.base import Json

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"

COLOURS = {  # on light and on dark paper
    "paper": ("#ffffff", "#14171b"),
    "ink": ("#1b1f24", "#e8eaed"),
    "soft": ("#57606a", "#a3abb5"),
    "faint": ("#e4e7eb", "#2b3138"),
    "accent": ("#0a66b0", "#6cb6ff"),
    "quiet": ("#8c959f", "#7a838d"),
    "alarm": ("#b3261e", "#ff8a80"),
    "c1": ("#0a66b0", "#6cb6ff"),
    "c2": ("#c2510a", "#f2914e"),
    "c3": ("#00795c", "#3fc89f"),
    "c4": ("#a2428a", "#e39ccb"),
    "c5": ("#806000", "#d9b310"),
    "c6": ("#2e8fc7", "#9ad7f5"),
    "c7": ("#5b4bb5", "#b0a4ff"),
    "c8": ("#4d4d4d", "#c0c0c0"),
}
LIGHT = {role: light for role, (light, _) in COLOURS.items()}
DARK = {role: dark for role, (_, dark) in COLOURS.items()}
SERIES = tuple(f"c{number}" for number in range(1, 9))
MOST_SERIES = len(SERIES)  # readers cannot distinguish more lines

CSS_COLOURS = {role: f"var(--{role})" for role in LIGHT}


def format_css_colors(palette: Mapping[str, str]) -> str:
    """Return a palette as CSS variables: `--ink: #1b1f24; …`."""
    return " ".join(f"--{role}: {colour};" for role, colour in palette.items())


def make_vega_config(colours: Mapping[str, str]) -> dict[str, Json]:
    """Return the configuration of Vega-Lite: fonts, thin lines and the roles of specifications."""
    background = "transparent" if colours is CSS_COLOURS else colours["paper"]
    text = {"font": FONT, "labelFont": FONT, "titleFont": FONT}
    return {
        "font": FONT,
        "background": background,
        "view": {"stroke": None},
        "axis": {
            **text,
            "labelColor": colours["soft"],
            "titleColor": colours["soft"],
            "titleFontWeight": "normal",
            "titleFontSize": 12,
            "labelFontSize": 11,
            "gridColor": colours["faint"],
            "domain": False,
            "tickColor": colours["faint"],
            "labelFlush": True,
            "tickCount": 5,
            "titlePadding": 8,
        },
        "title": {
            **text,
            "color": colours["ink"],
            "fontSize": 14,
            "anchor": "start",
            "fontWeight": 600,
            "offset": 12,
        },
        "legend": {
            **text,
            "labelColor": colours["ink"],
            "labelFontSize": 12,
            "symbolType": "circle",
            "labelLimit": 320,
            "titleLimit": 320,
        },
        "range": {"category": [colours[role] for role in SERIES]},
        # A screen reader reads one label per chart, not one for each of a thousand marks.
        "mark": {"aria": False, "color": colours["accent"]},
        "style": {
            "baseline": {"color": colours["soft"], "strokeWidth": 1, "strokeDash": [3, 3]},
            "limit": {"color": colours["alarm"], "strokeWidth": 1.5, "strokeDash": [6, 3]},
            "answer": {"color": colours["accent"], "opacity": 0.12},
            "change": {"color": colours["alarm"], "fontSize": 11},
            "heat": {"color": colours["accent"], "stroke": colours["paper"], "strokeWidth": 2},
            "name": {"color": colours["ink"], "fontSize": 12.5, "align": "left"},
            "best": {"color": colours["accent"], "size": 85, "opacity": 1},
            "beaten": {"color": colours["quiet"], "strokeWidth": 1.8, "size": 60, "opacity": 1},
            "error": {"color": colours["quiet"], "strokeWidth": 1.2},
            "bright": {"color": colours["ink"], "fontSize": 12},
            "rim": {
                "stroke": colours["paper"],
                "strokeWidth": 4,
                "strokeJoin": "round",
                "aria": False,
            },
            "dim": {"color": colours["soft"], "fontSize": 11},
        },
    }

"""The roofline figure: what each kernel reaches, under what this machine can do."""

from collections.abc import Iterator, Sequence
from html import escape
from math import log10
from statistics import median

from bitbench.core.kernel import KernelFigures, KernelSummary

_WIDTH, _HEIGHT = 760, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 210, 40, 55
_MARGIN = 1.4  # a factor, as the axes are logarithmic
# Colours that readers with a colour deficiency can tell apart (Okabe and Ito), in the order of the cases.
_COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#999933",
    "#882255",
    "#44AA99",
)


class _Axis:
    """A logarithmic axis from one power of two to another."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high = low, high
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        share = log10(value / self.low) / log10(self.high / self.low)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> Iterator[float]:
        tick = 2.0**-10
        while tick <= self.high * 1.0001:
            if tick >= self.low * 0.9999:
                yield tick
            tick *= 2


def roofline_svg(summary: KernelSummary) -> str:
    """flop/s over flop/byte, one mark per shape and batch; the line is the roof."""
    rows = [row for row in summary.figures if row.seconds]
    x, y = _axes(summary, rows)
    cases = list(dict.fromkeys(row.timing.case for row in rows))
    colours = {case: _COLOURS[place % len(_COLOURS)] for place, case in enumerate(cases)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12" role="img" aria-label="Roofline of this machine and what each kernel reaches">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        *_grid(x, y),
        _roof(summary, x, y),
        *(_mark(row, colours[row.timing.case], x, y) for row in rows),
        *_legend(rows, colours),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _axes(summary: KernelSummary, rows: Sequence[KernelFigures]) -> tuple[_Axis, _Axis]:
    intensities = [row.intensity for row in rows] or [1.0]
    speeds = [_flops_per_s(row) for row in rows] or [1e9]
    machine = summary.machine
    x = _Axis(min(intensities) / _MARGIN, max(intensities) * _MARGIN, _LEFT, _WIDTH - _RIGHT)
    highest = min(machine.flops_per_s, machine.read_bytes_per_s * x.high)
    y = _Axis(min(speeds) / _MARGIN, max(highest, *speeds), _HEIGHT - _BOTTOM, _TOP)
    return x, y


def _flops_per_s(row: KernelFigures) -> float:
    return row.timing.flops / row.seconds.value if row.seconds else 0.0


def _grid(x: _Axis, y: _Axis) -> Iterator[str]:
    for tick in x.ticks():
        yield f'<path d="M{x.at(tick):.1f} {_TOP}V{_HEIGHT - _BOTTOM}" stroke="#ddd"/>'
        yield f'<text x="{x.at(tick):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{tick:g}</text>'
    scaled = _Axis(y.low / 1e9, y.high / 1e9, _HEIGHT - _BOTTOM, _TOP)
    for tick in scaled.ticks():
        yield f'<path d="M{_LEFT} {scaled.at(tick):.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>'
        yield f'<text x="{_LEFT - 6}" y="{scaled.at(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    yield f'<text x="{middle}" y="{_HEIGHT - 14}" text-anchor="middle">arithmetic intensity (flop per byte)</text>'
    yield f'<text transform="translate(18 {_HEIGHT / 2}) rotate(-90)" text-anchor="middle">Gflop/s</text>'


def _roof(summary: KernelSummary, x: _Axis, y: _Axis) -> str:
    machine = summary.machine
    ridge = machine.flops_per_s / machine.read_bytes_per_s
    corners = [x.low, *([ridge] if x.low < ridge < x.high else []), x.high]
    points = " ".join(
        f"{x.at(value):.1f},{y.at(min(machine.flops_per_s, value * machine.read_bytes_per_s)):.1f}" for value in corners
    )
    label = f"{machine.read_bytes_per_s / 1e9:.1f} GB/s read"
    return (
        f'<polyline points="{points}" fill="none" stroke="#333" stroke-width="2"/>'
        f'<text x="{_LEFT + 8}" y="{_TOP - 12}">roof: {label}, {machine.flops_per_s / 1e9:,.0f} Gflop/s bfloat16</text>'
    )


def _mark(row: KernelFigures, colour: str, x: _Axis, y: _Axis) -> str:
    timing = row.timing
    title = f"{timing.case}, {timing.in_features}x{timing.out_features}, batch {timing.batch}"
    return (
        f'<circle cx="{x.at(row.intensity):.1f}" cy="{y.at(_flops_per_s(row)):.1f}" r="3.5" fill="{colour}" '
        f'fill-opacity="0.7"><title>{escape(title)}</title></circle>'
    )


def _legend(rows: Sequence[KernelFigures], colours: dict[str, str]) -> Iterator[str]:
    """Each case with the middle of its shares of the roof: marks of one case lie above each other."""
    left = _WIDTH - _RIGHT + 18
    for place, (case, colour) in enumerate(colours.items()):
        top = _TOP + 10 + 34 * place
        share = median(row.roof_share for row in rows if row.timing.case == case and row.roof_share is not None)
        yield f'<circle cx="{left}" cy="{top}" r="5" fill="{colour}"/>'
        yield f'<text x="{left + 12}" y="{top + 4}">{escape(case)}</text>'
        yield f'<text x="{left + 12}" y="{top + 18}" fill="#666" font-size="11">{share:.0%} of the roof (median)</text>'

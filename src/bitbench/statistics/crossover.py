"""Where along concurrency or input length does a contender change sides with the baseline?

At each point of a series (workloads that differ in nothing but the axis) there is the ratio of the two speeds with its
interval, as everywhere (`comparison`). Between neighbouring points the logarithms of the ratio and of both ends of its
interval are drawn as straight lines over log2 of the axis. Where this band holds "equal", it cannot be told who is
faster, and that stretch is the interval of a crossing: a true crossing lies outside of it no more often than an interval
at one point misses the truth.

The lines through the ends are those of errors that go together in neighbouring points. They mostly do, since the same
starts of the engines made both points; where they do not, the band is too wide and never too narrow. What the band does
not know is how far the truth bends between two points: the points around a crossing are therefore always given with it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf, log, log2

from bitbench.core.cell import Cell, Contender, Plan
from bitbench.core.crossover import Axis, Crossing, Crossover, Point, Standing, Stretch
from bitbench.core.summary import Ratio
from bitbench.core.workload import Workload
from bitbench.statistics.comparison import compare
from bitbench.statistics.intervals import Sample

# May differ along an axis: a closed loop sends more requests where it has more streams.
_FREE = {Axis.CONCURRENCY: {"name", "concurrency", "requests"}, Axis.INPUT_TOKENS: {"name", "input_tokens"}}


@dataclass(frozen=True)
class _Knot:
    """A point on log axes: place, ratio, and the ends of its interval."""

    u: float
    value: float
    low: float
    high: float


def find_crossovers(
    plan: Plan,
    samples: Mapping[Cell, Mapping[str, Sample]],
    baseline: Contender | None,
    metric: str,
    *,
    higher_is_better: bool,
) -> tuple[Crossover, ...]:
    """Every contender along every series of the study in which it and the baseline have two results or more."""
    if baseline is None:
        return ()
    confidence = plan.study.measure.confidence
    found = []
    for axis, workloads in _series(plan.study.workloads):
        for contender in plan.contenders:
            if contender == baseline:
                continue
            ratios = []
            for workload in workloads:
                pair = [samples.get(Cell(contender=one, workload=workload.name), {}) for one in (contender, baseline)]
                own, other = (one.get(metric) for one in pair)
                if own is None or other is None:
                    continue
                first, second = (own, other) if higher_is_better else (other, own)
                if (ratio := compare(first, second, confidence)) is not None:
                    ratios.append((_place(workload, axis), workload.name, ratio))
            if len(ratios) > 1:
                found.append(_crossover(axis, contender, baseline, metric, ratios, confidence))
    return tuple(found)


def _series(workloads: Sequence[Workload]) -> Iterator[tuple[Axis, list[Workload]]]:
    """Workloads that are equal but for one number, ascending in it."""
    for axis in Axis:
        groups: dict[str, dict[int, Workload]] = {}
        for workload in workloads:
            if workload.open_loop or axis.value in workload.unknown or not isinstance(workload.input_tokens, int):
                continue
            groups.setdefault(workload.model_dump_json(exclude=_FREE[axis]), {}).setdefault(
                _place(workload, axis), workload
            )
        yield from ((axis, [group[at] for at in sorted(group)]) for group in groups.values() if len(group) > 1)


def _place(workload: Workload, axis: Axis) -> int:
    place = workload.concurrency if axis is Axis.CONCURRENCY else workload.input_tokens
    assert isinstance(place, int)
    return place


def _crossover(
    axis: Axis,
    contender: Contender,
    baseline: Contender,
    metric: str,
    ratios: Sequence[tuple[int, str, Ratio]],
    confidence: float,
) -> Crossover:
    knots = [_knot(at, ratio) for at, _, ratio in ratios]
    stretches = _stretches(knots)
    return Crossover(
        axis=axis,
        contender=contender,
        baseline=baseline,
        metric=metric,
        points=tuple(
            Point(
                at=at,
                workload=name,
                speed=ratio.value,
                low=ratio.interval.low if ratio.interval else None,
                high=ratio.interval.high if ratio.interval else None,
            )
            for at, name, ratio in ratios
        ),
        stretches=tuple(stretches),
        crossings=tuple(_crossings(knots, stretches)),
        confidence=confidence,
        none_confidence=_none_confidence([ratio for _, _, ratio in ratios]),
    )


def _knot(at: int, ratio: Ratio) -> _Knot:
    low, high = (ratio.interval.low, ratio.interval.high) if ratio.interval else (0.0, inf)
    return _Knot(log2(at), log(ratio.value), log(low) if low > 0 else -inf, log(high))


def _stretches(knots: Sequence[_Knot]) -> list[Stretch]:
    pieces: list[Stretch] = []
    for left, right in zip(knots, knots[1:], strict=False):
        if any(isinf(end) for end in (left.low, left.high, right.low, right.high)):
            ends, unknown = [left.u, right.u], True
        else:
            roots = [_root(left.u, right.u, *pair) for pair in ((left.low, right.low), (left.high, right.high))]
            ends, unknown = sorted([left.u, right.u, *(root for root in roots if root is not None)]), False
        for begin, end in zip(ends, ends[1:], strict=False):
            standing = Standing.UNSURE if unknown else _standing(left, right, (begin + end) / 2)
            if pieces and pieces[-1].standing is standing:
                pieces[-1] = pieces[-1].model_copy(update={"high": 2**end})
            elif end > begin:
                pieces.append(Stretch(low=2**begin, high=2**end, standing=standing))
    return pieces


def _standing(left: _Knot, right: _Knot, u: float) -> Standing:
    share = (u - left.u) / (right.u - left.u)
    if left.low + share * (right.low - left.low) > 0:
        return Standing.FASTER
    return Standing.SLOWER if left.high + share * (right.high - left.high) < 0 else Standing.UNSURE


def _root(begin: float, end: float, first: float, last: float) -> float | None:
    """Where the line from (begin, first) to (end, last) is zero, if it changes its sign."""
    if (first < 0) is (last < 0) or first == last:
        return None
    return begin + (end - begin) * first / (first - last)


def _crossings(knots: Sequence[_Knot], stretches: Sequence[Stretch]) -> Iterator[Crossing]:
    """At most one in a stretch that cannot be told: there and back again within it is noise."""
    zeros: dict[int, list[tuple[float, _Knot, _Knot]]] = {}
    for left, right in zip(knots, knots[1:], strict=False):
        zero = _root(left.u, right.u, left.value, right.value)
        if zero is not None:
            zeros.setdefault(_place_in(stretches, 2**zero), []).append((zero, left, right))
    for place, inside in sorted(zeros.items()):
        if len(inside) % 2 == 0:
            continue
        zero, left, right = inside[len(inside) // 2]
        becomes = Standing.FASTER if inside[-1][2].value > 0 else Standing.SLOWER
        stretch = stretches[place]
        known = stretch.standing is Standing.UNSURE  # else the interval has no width: a zero between two sure sides
        around = [one.standing for one in (*stretches[max(place - 1, 0) : place], *stretches[place + 1 : place + 2])]
        yield Crossing(
            at=2**zero,
            low=stretch.low if known else 2**zero,
            high=stretch.high if known else 2**zero,
            after=round(2**left.u),
            before=round(2**right.u),
            becomes=becomes,
            is_sure=not known or set(around) == {Standing.FASTER, Standing.SLOWER},
        )


def _place_in(stretches: Sequence[Stretch], at: float) -> int:
    inside = [place for place, one in enumerate(stretches) if one.low <= at <= one.high]
    unsure = [place for place in inside if stretches[place].standing is Standing.UNSURE]
    return next(iter([*unsure, *inside]), 0)


def _none_confidence(ratios: Sequence[Ratio]) -> float | None:
    """Between two points the least sure place is one of them: both ratio and error are straight lines there."""
    if len({ratio.value > 1 for ratio in ratios}) > 1:
        return None
    return 1 - max(1.0 if ratio.p_value is None else ratio.p_value for ratio in ratios)

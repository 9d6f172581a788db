"""Medians and ratios of kernel timings.

Rounds interleave the cases, so a ratio is taken within each round: what slows a round down slows both. Times are
skewed to the right by whatever else the machine does, so the figures are medians; their intervals come from order
statistics and assume no distribution. Rounds of one pass resemble each other more than those of another, so that the
interval is the least that holds those of all passes.
"""

from collections.abc import Sequence

import numpy as np

from bitbench.analysis.distributions import fair_coin_quantile
from bitbench.features.kernels.types import KernelFigures, KernelMachine, KernelRun, KernelSummary, KernelTiming, Median

CONFIDENCE = 0.95


def summarize_kernels(run: KernelRun, baselines: Sequence[str]) -> KernelSummary:
    """`baselines` are the cases that the others are compared with."""
    by_point = {(timing.case, _point(timing)): timing for timing in run.timings}
    rows = []
    for timing in run.timings:
        others = {name: by_point.get((name, _point(timing))) for name in baselines if name != timing.case}
        speedups = {name: speedup(timing, other) for name, other in others.items() if other is not None}
        known = {name: value for name, value in speedups.items() if value is not None}
        rows.append(_figures(timing, run.machine, known))
    return KernelSummary(machine=run.machine, baselines=tuple(baselines), figures=tuple(rows))


def median_of_passes(values: Sequence[float], pass_rounds: Sequence[int]) -> Median:
    """The median of all, within the intervals of all passes; `pass_rounds` is empty where there was one."""
    parts = np.split(np.asarray(values), np.cumsum(pass_rounds)[:-1])
    passes = [median(part.tolist()) for part in parts if len(part)]
    bounds = [
        (pass_median.low, pass_median.high)
        for pass_median in passes
        if pass_median.low is not None and pass_median.high is not None
    ]
    value = float(np.median(values))
    if len(bounds) < len(passes):
        return Median(value=value)
    return Median(value=value, low=min(low for low, _ in bounds), high=max(high for _, high in bounds))


def median(values: Sequence[float]) -> Median:
    """The sample median between the order statistics that enclose the true one with the confidence above."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    count = len(ordered)
    below = fair_coin_quantile(count, (1 - CONFIDENCE) / 2)
    value = float(np.median(ordered))
    if below == 0:  # even the extremes enclose it too seldom
        return Median(value=value)
    return Median(value=value, low=float(ordered[below - 1]), high=float(ordered[count - below]))


def speedup(timing: KernelTiming, baseline: KernelTiming) -> Median | None:
    """How many times as fast as the baseline, round by round; None where one of them was not timed."""
    if not timing.seconds or not baseline.seconds:
        return None
    ratios = [other / own for own, other in zip(timing.seconds, baseline.seconds, strict=True)]
    return median_of_passes(ratios, timing.pass_rounds)


def _point(timing: KernelTiming) -> tuple[int, int, int]:
    return timing.in_features, timing.out_features, timing.batch


def _figures(timing: KernelTiming, machine: KernelMachine, speedups: dict[str, Median]) -> KernelFigures:
    seconds = median_of_passes(timing.seconds, timing.pass_rounds) if timing.seconds else None
    attainable_s = max(timing.size_bytes / machine.read_bytes_per_s, timing.flops / machine.flops_per_s)
    return KernelFigures(
        timing=timing,
        seconds=seconds,
        speedups=speedups,
        bytes_per_s=timing.size_bytes / seconds.value if seconds else None,
        intensity=timing.flops / timing.size_bytes,
        roof_share=attainable_s / seconds.value if seconds else None,
    )

"""What the kernel bench records, raw seconds per round and what they rest on, and the medians and ratios of these.

Rounds interleave the cases, so a ratio is taken within each round: what slows a round down slows both. Times are
skewed to the right by whatever else the machine does, so the figures are medians; their intervals come from order
statistics and assume no distribution. Rounds of one pass resemble each other more than those of another, so that the
interval is the least that holds those of all passes.
"""

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from bitbench.analysis.intervals import fair_coin_quantile
from bitbench.study.base import Record
from bitbench.study.hardware import KernelDevice

KERNEL_FORMAT = 1  # 1: first published form


class KernelMachine(Record):
    """Where the kernels ran, and what it can do at most, as the bench measured it."""

    format: int = KERNEL_FORMAT
    device: KernelDevice
    device_name: str | None = None  # of a GPU
    cuda: str | None = None  # the version that torch was built for
    cpu_model: str
    threads: int
    torch: str
    isa: str | None = None  # the best one that the native kernel could choose
    read_bytes_per_s: float
    flops_per_s: float
    cold_bytes: int
    seed: int


class KernelTiming(Record):
    """One case at one shape and batch. `seconds` has one value per round; a round runs every case once."""

    case: str
    in_features: int
    out_features: int
    batch: int
    labels: dict[str, int] = Field(default_factory=dict)
    weight_bytes: int
    error: float | None  # relative, against double precision; None where it could not run
    cause: str | None = None  # why there are no seconds
    seconds: tuple[float, ...] = ()
    pass_rounds: tuple[
        int, ...
    ] = ()  # how many of them each pass over all points gave; empty: one pass

    @property
    def size_bytes(self) -> int:
        """What one product reads and writes: weights once, activations and results in 16 bits."""
        return self.weight_bytes + 2 * self.batch * (self.in_features + self.out_features)

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.in_features * self.out_features


class KernelRun(Record):
    machine: KernelMachine
    timings: tuple[KernelTiming, ...]
    against: tuple[str, ...] = ()  # the baselines that were asked for; empty: the usual ones


class Median(Record):
    value: float
    low: float | None = None  # None where there are too few rounds for an interval
    high: float | None = None


class KernelFigures(Record):
    """What one case's rounds come to."""

    timing: KernelTiming
    seconds: Median | None  # None where the case was not timed
    speedups: dict[
        str, Median
    ]  # how many times as fast as a baseline; one that was not timed is left out
    bytes_per_s: float | None
    intensity: float  # flop per byte
    roof_share: float | None  # the time under this machine's roofline, divided by the measured one


class KernelSummary(Record):
    machine: KernelMachine
    baselines: tuple[str, ...]
    figures: tuple[KernelFigures, ...]


CONFIDENCE = 0.95


def summarize_kernels(run: KernelRun, baselines: Sequence[str]) -> KernelSummary:
    """`baselines` are the cases that the others are compared with."""
    by_point = {(timing.case, _point(timing)): timing for timing in run.timings}
    rows = []
    for timing in run.timings:
        others = {
            name: by_point.get((name, _point(timing))) for name in baselines if name != timing.case
        }
        speedups = {
            name: kernel_speedup(timing, other)
            for name, other in others.items()
            if other is not None
        }
        known = {name: value for name, value in speedups.items() if value is not None}
        rows.append(_figures(timing, run.machine, known))
    return KernelSummary(machine=run.machine, baselines=tuple(baselines), figures=tuple(rows))


def kernel_median_of_passes(values: Sequence[float], pass_rounds: Sequence[int]) -> Median:
    """The median of all, within the intervals of all passes; `pass_rounds` is empty where there was one."""
    parts = np.split(np.asarray(values), np.cumsum(pass_rounds)[:-1])
    passes = [kernel_median(part.tolist()) for part in parts if len(part)]
    lows = [found.low for found in passes if found.low is not None]
    highs = [found.high for found in passes if found.high is not None]
    value = float(np.median(values))
    if len(lows) < len(passes):
        return Median(value=value)
    return Median(value=value, low=min(lows), high=max(highs))


def kernel_median(values: Sequence[float]) -> Median:
    """The sample median between the order statistics that enclose the true one with the confidence above."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    count = len(ordered)
    below = fair_coin_quantile(count, (1 - CONFIDENCE) / 2)
    value = float(np.median(ordered))
    if below == 0:  # even the extremes enclose it too seldom
        return Median(value=value)
    return Median(value=value, low=float(ordered[below - 1]), high=float(ordered[count - below]))


def kernel_speedup(timing: KernelTiming, baseline: KernelTiming) -> Median | None:
    """How many times as fast as the baseline, round by round; None where one of them was not timed."""
    if not timing.seconds or not baseline.seconds:
        return None
    ratios = [other / own for own, other in zip(timing.seconds, baseline.seconds, strict=True)]
    return kernel_median_of_passes(ratios, timing.pass_rounds)


def _point(timing: KernelTiming) -> tuple[int, int, int]:
    return timing.in_features, timing.out_features, timing.batch


def _figures(
    timing: KernelTiming, machine: KernelMachine, speedups: dict[str, Median]
) -> KernelFigures:
    seconds = (
        kernel_median_of_passes(timing.seconds, timing.pass_rounds) if timing.seconds else None
    )
    attainable_s = max(
        timing.size_bytes / machine.read_bytes_per_s, timing.flops / machine.flops_per_s
    )
    return KernelFigures(
        timing=timing,
        seconds=seconds,
        speedups=speedups,
        bytes_per_s=timing.size_bytes / seconds.value if seconds else None,
        intensity=timing.flops / timing.size_bytes,
        roof_share=attainable_s / seconds.value if seconds else None,
    )

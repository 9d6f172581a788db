"""The records of the kernel bench, and their medians and ratios.

Rounds interleave the cases, so each ratio is taken within a round: other load slows both sides.
Other load also skews times to the right, so the summary uses medians. Their intervals come from
order statistics and assume no distribution. Rounds of one pass resemble each other more than rounds
of another pass, so the interval covers the intervals of all passes.
"""

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from bitbench.analysis.intervals import compute_fair_coin_quantile
from bitbench.study.base import Record
from bitbench.study.hardware import KernelDevice

KERNEL_FORMAT = 1  # 1: first published form


class KernelMachine(Record):
    """The machine on which the kernels ran, with its roofline as the bench measured it."""

    format: int = KERNEL_FORMAT
    device: KernelDevice
    device_name: str | None = None  # of a GPU
    cuda: str | None = None  # the version that torch was built for
    cpu_model: str
    threads: int
    torch: str
    isa: str | None = None  # the best that the native kernel could choose
    read_bytes_per_s: float
    flops_per_s: float
    cold_bytes: int
    seed: int


class KernelTiming(Record):
    """The times of a case at one shape and batch. A round runs every case once."""

    case: str
    in_features: int
    out_features: int
    batch: int
    labels: dict[str, int] = Field(default_factory=dict)
    weight_bytes: int
    error: float | None  # relative to double precision, None if it could not run
    cause: str | None = None  # why there are no seconds
    seconds: tuple[float, ...] = ()  # one per round
    pass_rounds: tuple[int, ...] = ()  # rounds of each pass over all points (empty: one pass)

    @property
    def size_bytes(self) -> int:
        """The bytes that one product moves: weights once, activations and results in 16 bits."""
        return self.weight_bytes + 2 * self.batch * (self.in_features + self.out_features)

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.in_features * self.out_features


class KernelRun(Record):
    """The records of one run of the bench."""

    machine: KernelMachine
    timings: tuple[KernelTiming, ...]
    against: tuple[str, ...] = ()  # the requested baselines (empty: the default ones)


class Median(Record):
    """A median with its interval."""

    value: float
    low: float | None = None  # None if there are too few rounds for an interval
    high: float | None = None


class KernelFigures(Record):
    """The metrics of one case at one shape and batch."""

    timing: KernelTiming
    seconds: Median | None  # None if the case was not timed
    speedups: dict[str, Median]  # by baseline, without baselines that were not timed
    bytes_per_s: float | None
    intensity: float  # flop per byte
    roof_share: float | None  # the time under this machine's roofline, divided by the measured one


class KernelSummary(Record):
    """The metrics of all timings of a run."""

    machine: KernelMachine
    baselines: tuple[str, ...]
    figures: tuple[KernelFigures, ...]


CONFIDENCE = 0.95


def summarize_kernels(run: KernelRun, baselines: Sequence[str]) -> KernelSummary:
    """Return the metrics of all timings, with each case's speed-up over the baselines."""
    by_point = {(timing.case, _get_point(timing)): timing for timing in run.timings}
    rows = []
    for timing in run.timings:
        speedups = {}
        for name in baselines:
            baseline = by_point.get((name, _get_point(timing)))
            if name == timing.case or baseline is None:
                continue
            speedup = compute_speedup(timing, baseline)
            if speedup is not None:
                speedups[name] = speedup
        rows.append(_summarize_timing(timing, run.machine, speedups))
    return KernelSummary(machine=run.machine, baselines=tuple(baselines), figures=tuple(rows))


def compute_median_of_passes(values: Sequence[float], pass_rounds: Sequence[int]) -> Median:
    """Return the median of all values, with an interval that covers the passes' intervals."""
    parts = np.split(np.asarray(values), np.cumsum(pass_rounds)[:-1])
    medians = [compute_median(part.tolist()) for part in parts if len(part)]
    lows = [median.low for median in medians if median.low is not None]
    highs = [median.high for median in medians if median.high is not None]
    value = float(np.median(values))
    if len(lows) < len(medians):
        return Median(value=value)
    return Median(value=value, low=min(lows), high=max(highs))


def compute_median(values: Sequence[float]) -> Median:
    """Return the sample median with an interval from order statistics, at `CONFIDENCE`."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    count = len(ordered)
    below = compute_fair_coin_quantile(count, (1 - CONFIDENCE) / 2)
    value = float(np.median(ordered))
    if below == 0:  # even the extremes contain the true median too rarely
        return Median(value=value)
    return Median(value=value, low=float(ordered[below - 1]), high=float(ordered[count - below]))


def compute_speedup(timing: KernelTiming, baseline: KernelTiming) -> Median | None:
    """Return the speed-up over the baseline, by round, or None if one of them was not timed."""
    if not timing.seconds or not baseline.seconds:
        return None
    pairs = zip(timing.seconds, baseline.seconds, strict=True)
    ratios = [baseline_s / own_s for own_s, baseline_s in pairs]
    return compute_median_of_passes(ratios, timing.pass_rounds)


def _get_point(timing: KernelTiming) -> tuple[int, int, int]:
    return timing.in_features, timing.out_features, timing.batch


def _summarize_timing(
    timing: KernelTiming, machine: KernelMachine, speedups: dict[str, Median]
) -> KernelFigures:
    seconds = None
    bytes_per_s = None
    roof_share = None
    if timing.seconds:
        seconds = compute_median_of_passes(timing.seconds, timing.pass_rounds)
        bytes_per_s = timing.size_bytes / seconds.value
        memory_s = timing.size_bytes / machine.read_bytes_per_s
        arithmetic_s = timing.flops / machine.flops_per_s
        roof_share = max(memory_s, arithmetic_s) / seconds.value
    return KernelFigures(
        timing=timing,
        seconds=seconds,
        speedups=speedups,
        bytes_per_s=bytes_per_s,
        intensity=timing.flops / timing.size_bytes,
        roof_share=roof_share,
    )

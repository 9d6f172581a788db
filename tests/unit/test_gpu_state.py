"""What GPUs did while a trial ran, and when that speaks against it. Through a stand-in for NVML; *not yet run on a
GPU*."""

import os
import time
from collections.abc import Callable

import pytest

from bitbench.analysis.trial import compute_trial_metrics
from bitbench.machine.gpus import list_installed_gpus
from bitbench.machine.watches import GpuWatch, find_gpu_disturbance, watch_gpus
from bitbench.records.request_sums import RequestSums
from bitbench.records.trial import GpuUse, Outcome
from tests.support.fake_nvml import FakeGpu, FakeNvml, fake_gpus, nvml_put_back  # noqa: F401
from tests.support.synthetic import request_rows

OURS, THEIRS = 100, 200


def watched(*gpus: FakeGpu, meanwhile: Callable[[FakeNvml], None] = lambda _: None) -> GpuUse:
    library = FakeNvml(list(gpus))
    with GpuWatch(list_installed_gpus(), lambda: {OURS}) as watch:
        meanwhile(library)
    assert watch.use is not None
    return watch.use


def test_what_is_seen_meanwhile_is_kept() -> None:
    def work(library: FakeNvml) -> None:
        first = library.gpus[0]
        first.clocks_mhz[1], first.temperature_c, first.slowed = 1_200, 83, 0x4
        time.sleep(1.5)  # the watch looks ten times a second, on a busy machine a few times
        first.clocks_mhz[1], first.temperature_c, first.slowed = 1_900, 70, 0x0
        library.gpus[0].energy_mj, library.gpus[1].energy_mj = 1_030_000, 1_012_000

    use = watched(FakeGpu(processes={OURS: 5}), FakeGpu(), meanwhile=work)
    assert (use.sm_clock_low_mhz, use.sm_clock_high_mhz, use.memory_clock_mhz) == (
        1_200,
        1_900,
        6_251,
    )
    assert (use.temperature_c, use.slowed_by, use.other_processes) == (83, ("power cap",), 0)
    assert use.energy_j == pytest.approx(42.0)
    assert find_gpu_disturbance(use) is None  # a power cap is what many cards always run into


def test_what_the_driver_does_not_tell_is_unknown() -> None:
    silent = FakeGpu(energy_mj=None, temperature_c=None, clocks_mhz={}, slowed=None)
    assert watched(silent) == GpuUse()
    assert watched(FakeGpu(), FakeGpu(energy_mj=None)).energy_j is None
    assert find_gpu_disturbance(GpuUse()) is None


def test_a_counter_that_was_set_back_says_nothing() -> None:
    def reload(library: FakeNvml) -> None:
        library.gpus[0].energy_mj = 5

    assert watched(FakeGpu(), meanwhile=reload).energy_j is None


@pytest.mark.parametrize(
    ("processes", "others"),
    [
        ({OURS: 1}, 0),
        ({OURS: 1, THEIRS: 1}, 1),
        ({THEIRS: 1}, None),  # ids of the host, as in a container, or an engine on the CPU
        ({}, None),
    ],
)
def test_others_are_counted_where_our_own_are_seen(
    processes: dict[int, int | None], others: int | None
) -> None:
    assert watched(FakeGpu(processes=processes)).other_processes == others


@pytest.mark.parametrize(
    ("use", "cause"),
    [
        (GpuUse(other_processes=1), "1 other process computed on the GPU meanwhile"),
        (GpuUse(other_processes=3), "3 other processes computed on the GPU meanwhile"),
        (
            GpuUse(slowed_by=("hardware thermal slowdown", "power cap"), temperature_c=91),
            "the GPU was slowed by hardware thermal slowdown, at up to 91 °C",
        ),
        (GpuUse(slowed_by=("power brake",)), "the GPU was slowed by power brake; see"),
    ],
)
def test_what_disturbs_a_trial_is_said(use: GpuUse, cause: str) -> None:
    failure = find_gpu_disturbance(use)
    assert failure is not None
    assert failure.outcome is Outcome.DISTURBED
    assert failure.cause.startswith(cause)


def test_without_a_gpu_nothing_is_watched() -> None:
    with GpuWatch((), lambda: ()) as watch:
        pass
    assert watch.use is None
    with watch_gpus(None) as elsewhere:
        pass
    assert elsewhere.use is None
    assert find_gpu_disturbance(None) is None


def test_the_engines_own_processes_are_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = fake_gpus(FakeGpu(processes={os.getpid(): 5, THEIRS: 5}))
    monkeypatch.setattr("bitbench.machine.watches.visible_gpus", lambda: tuple(gpus))
    with watch_gpus(os.getpid()) as watch:
        pass
    assert watch.use is not None
    assert watch.use.other_processes == 1


def test_energy_is_divided_by_the_tokens_that_came() -> None:
    rows = request_rows(
        {"planned_s": 0.0, "chunk_s": [1.0, 1.5, 2.0]}, {"planned_s": 0.0, "chunk_s": [1.0, 1.5]}
    )
    tokens = sum(rows["output_tokens"].to_pylist())
    sums = RequestSums.of(rows)
    assert compute_trial_metrics(sums, energy_j=10.0 * tokens).energy_per_token == pytest.approx(
        10.0
    )
    assert compute_trial_metrics(sums).energy_per_token is None

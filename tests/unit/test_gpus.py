"""Which GPUs engines would see, what they are, and whether they can be used. Through a stand-in for NVML; *not yet run
on a GPU*."""

from pathlib import Path

import pytest

from bitbench.cli.doctor import list_gpu_problems
from bitbench.engines.environments import InstalledEnvironment, write_environment_manifest
from bitbench.machine import gpus
from bitbench.machine.gpus import GpuSurvey, describe_gpu, list_cuda_visible_gpus, survey_nvml
from bitbench.machine.workplace import Workplace
from bitbench.planning.readiness import readiness
from bitbench.records.lock import HostFacts
from bitbench.study.hardware import Capability
from tests.support.fake_nvml import FakeGpu, FakeNvml, fake_gpus, nvml_put_back  # noqa: F401

A100 = FakeGpu("NVIDIA A100-SXM4-80GB", "GPU-aaaa1111-0", (8, 0), 81_920)
L4 = FakeGpu("NVIDIA L4", "GPU-bbbb2222-0", (8, 9), 23_034)
T4 = FakeGpu("Tesla T4", "GPU-cccc3333-0", (7, 5), 15_360)


def looked_at(
    *devices: FakeGpu, driver: str = "580.95.05", cuda: str = "0", **variables: str
) -> GpuSurvey:
    FakeNvml(list(devices), driver)
    return survey_nvml({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **variables}, lambda: cuda)


def test_a_gpu_is_described_by_what_figures_depend_on() -> None:
    (one,) = looked_at(L4).accelerators
    assert (one.name, one.driver, one.capability) == ("NVIDIA L4", "580.95.05", "8.9")
    assert one.memory_bytes == 23_034 * 2**20
    assert (one.ecc, one.mig, one.power_limit_w) == (True, None, 72.0)
    assert one.uuid == "GPU-bbbb2222-0"


def test_two_of_a_kind_are_comparable_and_told_apart_in_the_record() -> None:
    first, second = looked_at(L4, FakeGpu(uuid="GPU-dddd4444-0")).accelerators
    assert first.uuid != second.uuid
    assert HostFacts(accelerators=(first,)).shown("accelerators") == HostFacts(
        accelerators=(second,)
    ).shown("accelerators")
    capped = describe_gpu(fake_gpus(FakeGpu(power_limit_mw=50_000))[0], "580.95.05")
    assert str(capped) != str(first)


@pytest.mark.parametrize("untold", [None, 0])
def test_a_reading_of_zero_is_unknown(untold: int | None) -> None:
    gpu = FakeGpu(
        power_limit_mw=untold,
        energy_mj=untold,
        temperature_c=untold,
        clocks_mhz={} if untold is None else {1: 0, 2: 0},
        memory_mib=0,
        capability=(0, 0),
    )
    (found,) = fake_gpus(gpu)
    assert (found.power_limit_w, found.energy_j, found.temperature_c) == (None,) * 3
    assert (found.sm_clock_mhz, found.memory_clock_mhz, found.memory_bytes, found.capability) == (
        None,
    ) * 4


def test_what_slows_a_gpu_is_named_and_nothing_is_not_unknown() -> None:
    readings = [fake_gpus(FakeGpu(slowed=bits))[0].slowed_by for bits in (0, 0x44, 0x1, None)]
    assert readings == [(), ("power cap", "hardware thermal slowdown"), (), None]


@pytest.mark.parametrize("starts", [True, False])
def test_without_a_driver_that_answers_there_is_no_nvml(starts: bool) -> None:
    FakeNvml([], starts=starts)
    assert gpus.has_nvml.__wrapped__() is starts


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, [A100.name, L4.name, T4.name]),
        ("1", [L4.name]),
        ("2,0", [T4.name, A100.name]),
        ("GPU-bbbb2222-0", [L4.name]),
        ("GPU-cccc", [T4.name]),
        ("0,7,1", [A100.name]),  # CUDA reads up to the first that is none
        ("0,0", [A100.name]),
        ("", []),
        ("-1", []),
    ],
)
def test_visible_gpus_are_those_that_cuda_would_show(visible: str | None, names: list[str]) -> None:
    variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert [one.name for one in looked_at(A100, L4, T4, **variables).accelerators] == names


def test_numbers_that_count_by_speed_are_not_nvmls() -> None:
    by_speed = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_VISIBLE_DEVICES": "0"}
    assert len(looked_at(A100, L4, **by_speed).accelerators) == 2
    assert len(looked_at(L4, L4, **by_speed).accelerators) == 1  # alike: any of them


def test_a_part_of_a_gpu_counts_as_that_gpu() -> None:
    divided = FakeGpu("NVIDIA A100", "GPU-eeee5555-0", (8, 0), mig=True)
    found = list_cuda_visible_gpus(fake_gpus(L4, divided), {"CUDA_VISIBLE_DEVICES": "MIG-1234"})
    assert [gpu.name for gpu in found] == ["NVIDIA A100"]


def test_the_least_capability_counts_and_an_unknown_one_hides_it() -> None:
    assert looked_at(A100, T4, L4).capability == Capability(7, 5)
    assert looked_at(A100, FakeGpu(capability=(0, 0))).capability is None
    assert looked_at().capability is None


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (lambda: looked_at(L4), None),
        (looked_at, None),
        (lambda: looked_at(L4, driver="550.54.15"), "driver 550.54.15 is too old for the CUDA 13"),
        (lambda: looked_at(L4, cuda="802"), "cuInit answers 802"),
        (lambda: looked_at(L4, CUDA_VISIBLE_DEVICES=""), "hides all GPUs"),
    ],
)
def test_a_gpu_that_cannot_be_used_says_why(found: object, problem: str | None) -> None:
    answer = found()  # type: ignore[operator]
    assert (answer.problem is None) if problem is None else (problem in answer.problem)
    assert answer.is_usable == (bool(answer.accelerators) and problem is None)


def test_the_device_is_a_usable_gpu_unless_a_person_chooses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for answer, device, capability in (
        (looked_at(A100, L4), "cuda", Capability(8, 0)),
        (looked_at(L4, driver="550.54.15"), "cpu", None),
        (GpuSurvey(), "cpu", None),
    ):
        monkeypatch.setattr("bitbench.machine.workplace.survey_gpus", lambda answer=answer: answer)
        assert (Workplace(tmp_path).device, Workplace(tmp_path).capability) == (device, capability)
    monkeypatch.setattr("bitbench.machine.workplace.survey_gpus", lambda: looked_at(L4))
    assert (Workplace(tmp_path, "cpu").device, Workplace(tmp_path, "cpu").capability) == (
        "cpu",
        None,
    )
    assert Workplace(tmp_path, "cpu").host().accelerators == ()


def test_the_doctor_says_what_keeps_engines_from_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    said = list_gpu_problems(looked_at(L4, driver="550.54.15"))
    assert [sentence.partition(",")[0] for sentence in said[1:]] == [
        "No C compiler is on the PATH",
        f"{tmp_path}/Python.h is missing",
    ]
    assert "too old" in said[0]
    assert list_gpu_problems(GpuSurvey()) == ()


def test_an_environment_of_another_device_is_not_ready(tmp_path: Path) -> None:
    folder = tmp_path / "envs" / "vllm"
    folder.mkdir(parents=True)
    write_environment_manifest(
        InstalledEnvironment("vllm", folder, complete=True, lock="vllm-cpu.txt")
    )
    assert readiness(["vllm"], [], tmp_path, device="cpu").commands == ()
    ready = readiness(["vllm"], [], tmp_path, device="cuda")
    assert (
        ready.environments["vllm"]
        == "The environment vllm was created for cpu, and engines here run on cuda."
    )
    assert ready.commands == ("bitbench env create vllm",)
    assert readiness(["vllm"], [], tmp_path, device="cuda", asked_for="cuda").commands == (
        "bitbench env create vllm --device cuda",
    )

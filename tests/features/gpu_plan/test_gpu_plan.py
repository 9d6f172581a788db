"""Plans for GPUs that are not here: what fits, what is refused and why, hours, and the files of examples/gpu."""

import json
from pathlib import Path

import pytest

from bitbench.features.gpu_plan import computing
from bitbench.features.gpu_plan.computing import (
    ASSUMED_OVERHEAD_BYTES,
    ASSUMED_ROOF_SHARE,
    ASSUMED_STEP_OVERHEAD_S,
    compute_gpu_plan,
)
from bitbench.features.gpu_plan.devices import (
    DEFAULT_SHARE,
    DEVICE_CLASSES,
    DeviceNeed,
    DevicePlan,
    make_device_use,
)
from bitbench.machine.workplace import Workplace
from bitbench.models.shapes import SHAPES
from bitbench.planning.compatibility import CompatibilityRow
from bitbench.study.hardware import Capability
from bitbench.study.model_cost import compute_decode_cost
from bitbench.study.plan import Plan, Support
from bitbench.study.study import EngineSetup
from bitbench.study.study_file import parse_study
from bitbench.util.errors import ExitCode
from tests.command_line import bitbench

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples" / "gpu").glob("*.yaml"))
STUDY = """\
name: planned
models: ["{model}"]
recipes: [{recipes}]
engines: [{engines}]
workloads:
  - {{name: short, concurrency: 1, input_tokens: 64, output_tokens: 64}}
  - {{name: long, concurrency: {concurrency}, input_tokens: 30000, output_tokens: 1000}}
measure: {{starts: 2, trials: 3}}
"""


def planned(
    home: Path,
    device: str,
    *,
    model: str = "Qwen/Qwen2.5-7B-Instruct",
    recipes: str = "bf16",
    engines: str = "vllm",
    concurrency: int = 1,
) -> tuple[Plan, DevicePlan]:
    text = STUDY.format(model=model, recipes=recipes, engines=engines, concurrency=concurrency)
    answer = compute_gpu_plan(
        parse_study(text, name="study"), DEVICE_CLASSES[device], Workplace(home)
    )
    return answer.plan, answer.on_device


def only_need(on_device: DevicePlan) -> DeviceNeed:
    (need,) = on_device.needs
    return need


def test_memory_is_weights_and_one_request_and_a_little(tmp_path: Path) -> None:
    plan, on_device = planned(tmp_path, "h100-80gb")
    need, shape = only_need(on_device), SHAPES["qwen2.5-7b"]
    weights = plan.variants[0].weight_bytes
    assert (
        need.weight_bytes == weights == pytest.approx(2 * (shape.facts.parameters or 0), rel=1e-4)
    )
    assert need.request_kv_bytes == 31_000 * 2 * 28 * 4 * 128 * 2
    assert need.needed_bytes == (weights or 0) + need.request_kv_bytes + ASSUMED_OVERHEAD_BYTES
    assert need.room_bytes == int(81_559 * 2**20 * DEFAULT_SHARE)
    assert need.fits
    assert len(plan.points) == 2
    assert not plan.refusals


def test_what_does_not_fit_is_refused_with_what_would_be_enough(tmp_path: Path) -> None:
    plan, on_device = planned(tmp_path, "t4", recipes="bf16, w4a16-rtn")
    assert {point.config.variant for point in plan.points} == {"Qwen2.5-7B-Instruct/w4a16-rtn"}
    reasons = {refusal.reason for refusal in plan.refusals}
    assert any("on each of 1 × NVIDIA T4 (weights 14.2 GiB" in reason for reason in reasons)
    assert all(
        reason.endswith("and may take 13.8 GiB; 2 devices would be enough.") for reason in reasons
    )
    dense, quantized = on_device.needs
    assert (dense.fits, quantized.fits) == (False, True)
    assert dense.too_long == ("short", "long")


def test_a_model_that_fits_nowhere_says_so(tmp_path: Path) -> None:
    plan, on_device = planned(
        tmp_path,
        "t4",
        model="meta-llama/Llama-3.1-70B-Instruct",
        engines="{engine: vllm, args: {tp: 8}}",
    )
    assert not plan.points
    assert only_need(on_device).use.devices == 8
    assert "2 devices" not in plan.refusals[0].reason
    assert "16 devices would be enough" in plan.refusals[0].reason
    assert on_device.seconds == (0.0, 0.0)


def test_devices_share_weights_and_heads_but_no_head_is_divided(tmp_path: Path) -> None:
    one = only_need(planned(tmp_path, "h100-80gb")[1])
    eight = only_need(
        planned(tmp_path, "h100-80gb", engines="{engine: vllm, args: {tensor_parallel_size: 8}}")[1]
    )
    assert eight.request_kv_bytes == (one.request_kv_bytes or 0) / 4  # four heads
    assert (eight.needed_bytes or 0) < (one.needed_bytes or 0) / 3


def test_an_engine_makes_room_for_the_context_that_its_setup_names(tmp_path: Path) -> None:
    setup = "{engine: vllm, args: {max-model-len: 32768, gpu-memory-utilization: 0.5, kv-cache-dtype: fp8}}"
    plan, on_device = planned(tmp_path, "l4", recipes="w4a16-rtn", engines=setup)
    need = only_need(on_device)
    assert need.room_bytes == int(23_034 * 2**20 * 0.5)
    one_request = 32_768 * 28 * 4 * 128 * 2
    assert need.needed_bytes == (need.weight_bytes or 0) + one_request + ASSUMED_OVERHEAD_BYTES
    assert len(plan.points) == 2


def test_requests_that_have_to_wait_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, on_device = planned(tmp_path, "l4", recipes="w4a16-rtn", concurrency=16)
    assert len(plan.points) == 2
    assert only_need(on_device).waits == ("long",)


@pytest.mark.parametrize(
    ("args", "devices", "share", "value_bytes", "context"),
    [
        ({}, 1, DEFAULT_SHARE, 2, None),
        ({"--tensor_parallel_size": 4, "pipeline-parallel-size": 2}, 8, DEFAULT_SHARE, 2, None),
        ({"tp": 2, "mem-fraction-static": 0.8, "context-length": 4096}, 2, 0.8, 2, 4096),
        (
            {"kv-cache-dtype": "fp8_e5m2", "gpu-memory-utilization": "most"},
            1,
            DEFAULT_SHARE,
            1,
            None,
        ),
        ({"tensor-parallel-size": "two", "max-model-len": "auto"}, 1, DEFAULT_SHARE, 2, None),
    ],
)
def test_how_a_setup_uses_devices(
    args: dict[str, str | int], devices: int, share: float, value_bytes: int, context: int | None
) -> None:
    use = make_device_use(EngineSetup(name="x", engine="x", args=dict(args)))
    assert (use.devices, use.memory_share, use.kv_value_bytes, use.context_tokens) == (
        devices,
        share,
        value_bytes,
        context,
    )


def test_time_is_the_roofline_and_half_of_it(tmp_path: Path) -> None:
    """One token out of many: a decode step reads the weights and the cache once."""
    plan, on_device = planned(tmp_path, "a100-80gb")
    device, facts = DEVICE_CLASSES["a100-80gb"], SHAPES["qwen2.5-7b"].facts
    weights = plan.variants[0].weight_bytes or 0
    step = compute_decode_cost(facts, weights, 1, 64 + 32)
    step_s = step.size_bytes / device.read_bytes_per_s
    low, high = on_device.seconds
    starts_s = 2 * (60 + weights / 1e9)
    trials = 2 * (3 + 1)
    assert low > starts_s + trials * 64 * step_s
    assert high > starts_s + trials * 64 * (step_s / ASSUMED_ROOF_SHARE + ASSUMED_STEP_OVERHEAD_S)
    assert high < 3 * low


def test_quantized_weights_take_less_time_and_integers_compute_faster(tmp_path: Path) -> None:
    dense, int8, int4 = (planned(tmp_path, "a100-80gb", recipes=recipe)[1].seconds[0] for recipe in
                         ("bf16", "w8a8-rtn", "w4a16-rtn"))  # fmt: skip
    assert int4 < int8 < dense


def test_a_mixture_of_experts_is_timed_by_what_its_tokens_read(tmp_path: Path) -> None:
    on_device = planned(tmp_path, "h100-80gb", model="Qwen/Qwen3-30B-A3B")[1]
    assert only_need(on_device).fits
    assert not on_device.untimed


def test_a_smaller_kv_cache_takes_less_time(tmp_path: Path) -> None:
    wide, narrow = (
        planned(
            tmp_path,
            "h100-80gb",
            engines=f"{{engine: vllm, args: {{kv-cache-dtype: {name}}}}}",
            concurrency=8,
        )[1]
        for name in ("auto", "fp8")
    )
    assert narrow.seconds[0] < 0.98 * wide.seconds[0]


@pytest.mark.usefixtures("_fresh")
def test_the_terminal_shows_what_each_device_holds(capsys: pytest.CaptureFixture[str]) -> None:
    engines = "{engine: vllm, args: {tensor-parallel-size: 2}}"
    text = STUDY.format(model="Qwen/Qwen3-30B-A3B", recipes="bf16", engines=engines, concurrency=1)
    Path("mixture.yaml").write_text(text, encoding="utf-8")
    said = " ".join(
        bitbench(capsys, "plan-gpu", "mixture.yaml", "--device-class", "h100-80gb").out.split()
    )
    assert "2 28.4 GiB" in said
    plain = " ".join(bitbench(capsys, "plan", "mixture.yaml").out.split())
    assert "56.9 GiB of weights (a token reads 5.67 GiB), not downloaded" in plain


def test_compatibility_is_asked_with_the_capability_of_the_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = set()

    def look_up(form: str, engine: str, *_: object, capability: Capability) -> CompatibilityRow:
        asked.add(capability)
        return CompatibilityRow(
            form=form,
            engine=engine,
            device="cuda",
            verdict=Support.RUNS,
            kernel="MacheteLinearKernel",
            checked="x",
        )

    monkeypatch.setattr(computing, "look_up_compatibility", look_up)
    monkeypatch.setattr("bitbench.planning.plan.look_up_compatibility", look_up)
    assert (
        only_need(planned(tmp_path, "h100-80gb", recipes="w4a16-rtn")[1]).kernel
        == "MacheteLinearKernel"
    )
    assert asked == {Capability(9, 0)}
    chosen = planned(
        tmp_path, "h100-80gb", engines="{engine: vllm, args: {linear-backend: marlin}}"
    )[1]
    assert only_need(chosen).kernel == "marlin (chosen)"


@pytest.mark.parametrize(
    ("recipe", "device", "kernel"),
    [
        ("w8a8-rtn", "t4", "CutlassInt8ScaledMMLinearKernel"),
        ("w8a16-rtn", "a100-80gb", "MarlinLinearKernel"),
        ("w8a16-rtn", "h100-80gb", "MacheteLinearKernel"),
        ("w8a16-sparse-awq", "h100-80gb", "MacheteLinearKernel"),  # stored dense
    ],
)
def test_kernels_are_those_that_the_wheel_chose(
    tmp_path: Path, recipe: str, device: str, kernel: str
) -> None:
    assert only_need(planned(tmp_path, device, recipes=recipe)[1]).kernel == kernel


@pytest.fixture
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BITBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("device", DEVICE_CLASSES)
def test_every_example_is_planned_for_every_class(
    path: Path, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = bitbench(capsys, "plan-gpu", str(path), "--device-class", device, "--json")
    assert answer.exit_code in (ExitCode.DONE, ExitCode.NOTHING_MEASURED), answer.err
    printed = json.loads(answer.out)["answer"]
    plan, on_device = printed["plan"], printed["on_device"]
    assert on_device["device"]["name"] == device
    kept = {(point["config"]["variant"], point["config"]["engine"]) for point in plan["points"]}
    for need in on_device["needs"]:
        config = (need["config"]["variant"], need["config"]["engine"])
        assert need["fits"] == (config in kept)
        assert (need["needed_bytes"] <= need["room_bytes"]) == need["fits"]
    low, high = on_device["seconds"]
    assert 0 < low < high if kept else high == 0
    assert [f"bitbench model get {name}" for name in printed["missing_models"]] == [
        command for command in printed["before_run"] if "model get" in command
    ]
    assert bool(printed["missing_models"]) == bool(kept)
    assert not Path("home").exists()  # nothing was made by looking


@pytest.mark.usefixtures("_fresh")
def test_the_terminal_says_what_it_rests_on(capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "examples" / "gpu" / "recipes-by-workload.yaml"
    answer = bitbench(capsys, "plan-gpu", str(path), "--device-class", "l4")
    assert answer.exit_code == 0, answer.err
    said = " ".join(answer.out.split())
    assert "On l4: NVIDIA L4, compute capability 8.9, 22.5 GiB, 300 GB/s" in said
    assert "Nothing of this was measured." in said
    assert "on 1 × NVIDIA L4 (an estimate: at the roofline" in said
    assert "Needed there before `bitbench run`:" in said
    assert "bitbench model get Qwen/Qwen3-4B@1cfa9a7208912126459214e8b04321603b3df60c" in said


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--device-class", "h100-80"],
            "did you mean `h100-80gb`? known are b200, h200, h100-80gb, a100-80gb, l40s, l4, a10, t4, rtx5090",
        ),
        (["--json"], "Missing option '--device-class'"),
    ],
)
def test_a_wrong_option_is_said(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = bitbench(capsys, "plan-gpu", str(EXAMPLES[0]), *options)
    assert answer.exit_code == ExitCode.USAGE
    assert message in answer.err


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("width", ["80", "60"])
def test_the_columns_of_memory_add_up_and_names_break_at_words(
    width: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    path = ROOT / "examples" / "gpu" / "recipes-by-workload.yaml"
    lines = bitbench(capsys, "plan-gpu", str(path), "--device-class", "l4").out.splitlines()
    assert max(map(len, lines[: lines.index("Needed there before `bitbench run`:")])) <= int(width)
    (row,) = [line for line in lines if line.startswith("bf16 @ vllm") and "GiB" in line]
    weights, of_one, needed = (
        float(number) for number in row.replace("bf16 @ vllm", "").split("GiB")[:3]
    )
    assert weights + of_one + ASSUMED_OVERHEAD_BYTES / 2**30 == pytest.approx(needed, abs=0.06)
    assert "kernel expected: MarlinLinearKernel" in lines
    names = [line.split("  ")[0].rstrip() for line in lines if line.startswith("w8a8-sparse")]
    assert {name[-1] for name in names} <= set("-@mqg")  # after a hyphen or a word


@pytest.mark.parametrize(
    ("name", "capability"), [("rtx3090", "8.6"), ("rtx4090", "8.9"), ("rtx5090", "12.0")]
)
def test_consumer_gpus_can_be_planned_for(tmp_path: Path, name: str, capability: str) -> None:
    _, on_device = planned(tmp_path, name, model="Qwen/Qwen3-4B")
    assert on_device.device.capability == capability
    assert only_need(on_device).fits

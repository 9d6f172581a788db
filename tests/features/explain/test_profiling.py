"""Reading torch's traces: events, steps, self times, groups."""

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from bitbench.analysis.roofline import load_operator_groups
from bitbench.features.explain import trace as trace_module
from bitbench.features.explain.trace import (
    ChromeTrace,
    Span,
    Step,
    StepShape,
    compute_decode_seconds,
    compute_prefill_seconds,
    divide_traced_steps,
    list_steps,
    read_trace,
)
from bitbench.records.profile import Phase, ProfileGroup
from bitbench.util.errors import ProfileError

DATA = Path(__file__).parent / "data"
COMPILED = (
    DATA / "vllm-0.32-bf16-compiled.trace.json.gz"
)  # a prompt of 128 tokens, then decode; three steps of it
NAMES: dict[str, list[str]] = json.loads((DATA / "operator-names.json").read_text(encoding="utf-8"))


def event(
    name: str, start: float, length: float, cat: str = "cpu_op", **more: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": start,
        "dur": length,
        **more,
    }


def mark(
    start: float, length: float, *, prompts: int = 0, tokens: int = 0, sequences: int = 0
) -> dict[str, Any]:
    name = f"execute_context_{prompts}({tokens})_generation_{sequences}({sequences})"
    return event(name, start, length, "user_annotation")


# Two decode steps of 100 µs that another follows; by hand in the test below.
EVENTS = [
    mark(0, 90, sequences=2),
    event("aten::linear", 10, 40),
    event("aten::mm", 15, 30),
    event("vllm::unified_attention_with_output", 55, 20),
    event("aten::copy_", 60, 5),
    event("a::new_operator", 92, 3),
    mark(100, 90, sequences=2),
    event("aten::copy_", 110, 10),
    mark(200, 90, sequences=2),
    event("aten::mm", 210, 50),
    mark(300, 1),
]


def written(folder: Path, events: list[Any], *, cut: int | None = None) -> Path:
    text = json.dumps(
        {"schemaVersion": 1, "note": "a [ before", "traceEvents": events, "traceName": "x"}
    )
    path = folder / "made.trace.json.gz"
    path.write_bytes(gzip.compress(text[:cut].encode()))
    return path


def test_self_times_by_hand(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, EVENTS))
    steps = list_steps(trace, StepShape(Phase.DECODE, 2, 8))
    assert [(step.start, step.end) for step in steps] == [
        (0, 100),
        (100, 200),
    ]  # an empty step follows the third
    operators, groups = divide_traced_steps(trace, steps, load_operator_groups())
    found = {(one.name, one.group.value): one for one in operators}
    assert found["aten::linear", "framework"].self_cpu_s == pytest.approx(10e-6)
    assert found["aten::linear", "framework"].cpu_total_s == pytest.approx(40e-6)
    assert found["aten::mm", "dense_matmul"].self_cpu_s == pytest.approx(30e-6)
    assert found["aten::copy_", "attention"].calls == 1  # called by the attention
    assert found["aten::copy_", "copies_casts"].calls == 1  # called by nobody
    assert found["a::new_operator", "other"].self_cpu_s == pytest.approx(
        3e-6
    )  # between two marks, and not lost
    assert sum(one.self_cpu_share for one in operators) == pytest.approx(1.0)
    by_group = {one.group: one.step_s for one in groups}
    assert by_group[ProfileGroup.ATTENTION] == pytest.approx(10e-6)
    assert by_group[ProfileGroup.FRAMEWORK] == pytest.approx((200 - 30 - 20 - 10 - 3) * 1e-6 / 2)
    assert sum(by_group.values()) == pytest.approx(100e-6)


def test_device_time_goes_to_the_operator_that_launched_it(tmp_path: Path) -> None:
    """From the documentation of the format: not yet run on a GPU."""
    launched = [
        mark(0, 90, sequences=1),
        event("aten::mm", 10, 5, args={"External id": 7}),
        {
            "ph": "X",
            "cat": "kernel",
            "name": "gemm",
            "pid": 0,
            "tid": 7,
            "ts": 30,
            "dur": 60,
            "args": {"External id": 7},
        },
        mark(100, 90, sequences=1),
    ]
    trace = read_trace(written(tmp_path, launched))
    operators, groups = divide_traced_steps(
        trace, list_steps(trace, StepShape(Phase.DECODE, 1, 8)), load_operator_groups()
    )
    assert operators[0].self_device_s == pytest.approx(60e-6)
    by_group = {one.group: one.step_s for one in groups}
    assert by_group == {
        ProfileGroup.DENSE_MATMUL: pytest.approx(60e-6), ProfileGroup.FRAMEWORK: pytest.approx(40e-6),
    }  # fmt: skip


def device(
    kind: str, name: str, start: float, duration: float, **arguments: int
) -> dict[str, object]:
    return {
        "ph": "X",
        "cat": kind,
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": start,
        "dur": duration,
        "args": arguments,
    }


def test_kernels_of_a_graph_are_grouped_by_their_own_names(tmp_path: Path) -> None:
    """From the documentation of the format: not yet run on a GPU."""
    step = "execute_context_0(0)_generation_1(1)"
    kernels = [
        (
            "void marlin::Marlin<__nv_bfloat16, 1125899906909960l, 256, 1, 8, 8, false, 4, 2, false>",
            40.0,
        ),
        ("void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128>>", 10.0),
        ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", 15.0),
        ("triton_red_fused_add_rms_norm_0", 5.0),
        ("a_kernel_that_nobody_knows", 2.0),
    ]
    launched: list[dict[str, object]] = [
        mark(0, 90, sequences=1),
        event("cudaGraphLaunch", 10, 5),
        mark(100, 90, sequences=1),
    ]
    for step_begins in (5.0, 105.0):
        launched.append(device("gpu_user_annotation", step, step_begins, 80.0))
        ends = step_begins
        for name, duration in kernels:
            launched.append(device("kernel", name, ends, duration, correlation=3))
            ends += duration
    launched += [mark(200, 90, sequences=1), device("kernel", "between steps", 95.0, 3.0)]
    trace = read_trace(written(tmp_path, launched))
    operators, groups = divide_traced_steps(
        trace, list_steps(trace, StepShape(Phase.DECODE, 1, 8)), load_operator_groups()
    )
    assert {one.group: round(one.step_s * 1e6, 3) for one in groups} == {
        ProfileGroup.QUANTIZED_MATMUL: 40.0,
        ProfileGroup.ATTENTION: 10.0,
        ProfileGroup.DENSE_MATMUL: 15.0,
        ProfileGroup.NORM_ACTIVATION: 5.0,
        ProfileGroup.OTHER: 2.0,
        ProfileGroup.FRAMEWORK: 28.0,
    }
    first = operators[0]
    assert first.name.startswith("void marlin::Marlin<")
    assert (first.calls, first.self_device_s) == (2, pytest.approx(80e-6))
    assert all(one.name != "between steps" for one in operators)


@pytest.mark.parametrize(
    ("kernel", "group"),
    [
        ("void machete::prepack_kernel<…>", ProfileGroup.QUANTIZED_MATMUL),
        ("void cutlass::device_kernel<cutlass_3x_gemm_fp8<e4m3>>", ProfileGroup.QUANTIZED_MATMUL),
        ("fp8_gemm_kernel<2560u, 9728u>", ProfileGroup.QUANTIZED_MATMUL),
        (
            "void vllm::dynamic_scaled_int8_quant_kernel<c10::BFloat16>",
            ProfileGroup.QUANTIZED_MATMUL,
        ),
        (
            "void vllm::dynamic_per_token_scaled_fp8_quant_kernel<c10::BFloat16>",
            ProfileGroup.QUANTIZED_MATMUL,
        ),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64", ProfileGroup.DENSE_MATMUL),
        ("ampere_bf16_s16816gemm_bf16_64x64_sliced1x2_ldg8_f2f_tn", ProfileGroup.DENSE_MATMUL),
        ("void gemv2T_kernel_val<int, int, __nv_bfloat16>", ProfileGroup.DENSE_MATMUL),
        ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<…>>", ProfileGroup.ATTENTION),
        ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<…>", ProfileGroup.ATTENTION),
        ("fmhaSm100fKernel_QkvBfloat16OBfloat16", ProfileGroup.ATTENTION),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", ProfileGroup.ATTENTION),
        ("triton_poi_fused_mul_silu_1", ProfileGroup.NORM_ACTIVATION),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", ProfileGroup.COPIES_CASTS),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>", ProfileGroup.COPIES_CASTS),
        ("Memcpy DtoH (Device -> Pinned)", ProfileGroup.COPIES_CASTS),
        ("Memset (Device)", ProfileGroup.COPIES_CASTS),
    ],
)
def test_a_kernel_that_is_often_seen_has_its_group(kernel: str, group: ProfileGroup) -> None:
    assert load_operator_groups().group_of(kernel)[0] is group


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_a_trace_is_read_in_pieces_of_any_size(
    tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, EVENTS)
    whole = read_trace(path)
    monkeypatch.setattr(trace_module, "_CHUNK", chunk)
    assert read_trace(path) == whole
    assert len(whole.spans) == 11


def test_a_trace_that_is_not_whole_is_named_and_odd_events_are_passed_over(tmp_path: Path) -> None:
    with pytest.raises(
        ProfileError, match=r"made\.trace\.json\.gz is not a complete trace.*ends in the middle"
    ):
        read_trace(written(tmp_path, EVENTS, cut=400))
    with pytest.raises(ProfileError, match="no traceEvents"):
        read_trace(written(tmp_path, EVENTS, cut=20))
    path = written(tmp_path, EVENTS)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ProfileError, match="not a complete trace"):
        read_trace(path)
    odd = [
        None,
        {"ph": "X"},
        {"cat": "cpu_op", "ts": 1, "tid": "a name"},
        {"cat": "cpu_op", "ph": "B", "ts": 1, "tid": 1},
    ]
    assert read_trace(written(tmp_path, odd)) == ChromeTrace([], [], [])


def test_no_step_of_the_asked_shape_says_what_is_there(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, EVENTS))
    with pytest.raises(
        ProfileError, match=r"no prefill step of 4 sequences.*execute_context_0\(0\)_generation_2"
    ):
        list_steps(trace, StepShape(Phase.PREFILL, 4, 8))


def naive_self_times(spans: list[Span]) -> dict[str, float]:
    """Slow and obvious: from each operator take those whose smallest container it is."""
    times: dict[str, float] = defaultdict(float)
    for span in spans:
        times[span.name] += span.end - span.start
        around = [
            one
            for one in spans
            if one is not span and one.start <= span.start and span.end <= one.end
        ]
        if around:
            times[min(around, key=lambda one: one.end - one.start).name] -= span.end - span.start
    return times


def test_a_recorded_trace_gives_the_self_times_of_the_obvious_method() -> None:
    trace = read_trace(COMPILED)
    steps = list_steps(trace, StepShape(Phase.DECODE, 1, 128))
    assert len(steps) == 2
    first = steps[:1]
    operators, groups = divide_traced_steps(trace, first, load_operator_groups())
    inside = [
        span
        for span in trace.spans
        if span.is_operator and first[0].start <= span.start < first[0].end
    ]
    ours: dict[str, float] = defaultdict(float)
    for one in operators:
        ours[one.name] += one.self_cpu_s * 1e6
    expected = naive_self_times(inside)
    assert ours.keys() == expected.keys()
    for name, microseconds in expected.items():
        assert ours[name] == pytest.approx(microseconds, abs=0.1 + 0.1 * len(inside) ** 0.5), name
    step_s = 1e-6 * sum(step.end - step.start for step in first) / len(first)
    assert sum(one.step_s for one in groups) == pytest.approx(step_s)
    assert all(one.step_s >= 0 for one in groups)
    assert max(groups, key=lambda one: one.step_s).group is ProfileGroup.DENSE_MATMUL


def test_prefill_and_decode_are_told_apart_by_their_marks() -> None:
    trace = read_trace(COMPILED)
    prompt = list_steps(trace, StepShape(Phase.PREFILL, 1, 128))
    decode = list_steps(trace, StepShape(Phase.DECODE, 1, 128))
    assert len(prompt) == 1
    assert prompt[0].end == decode[0].start
    assert prompt[0].end - prompt[0].start > 1.5 * (decode[0].end - decode[0].start)


@pytest.mark.parametrize("recorded", NAMES)
def test_every_operator_of_real_traces_has_a_group(recorded: str) -> None:
    unknown = [
        name
        for name in NAMES[recorded]
        if load_operator_groups().group_of(name)[0] is ProfileGroup.OTHER
    ]
    assert unknown == []


@pytest.mark.parametrize(
    ("recorded", "name", "group"),
    [
        ("vllm bf16", "_C::onednn_mm", ProfileGroup.DENSE_MATMUL),
        ("vllm bf16", "_C::weight_packed_linear", ProfileGroup.DENSE_MATMUL),
        ("vllm bf16", "vllm::unified_attention_with_output", ProfileGroup.ATTENTION),
        ("vllm bf16", "_C::greedy_argmax", ProfileGroup.SAMPLING),
        ("vllm bf16", "aten::_to_copy", ProfileGroup.COPIES_CASTS),
        ("vllm bf16", "aten::rsqrt", ProfileGroup.NORM_ACTIVATION),
        ("vllm bf16 compiled", "## Call CompiledFxGraph None ##", ProfileGroup.NORM_ACTIVATION),
        ("vllm w8a8", "_C::int8_scaled_mm_with_quant", ProfileGroup.QUANTIZED_MATMUL),
        ("vllm w4a16", "_C::int4_scaled_mm_cpu", ProfileGroup.QUANTIZED_MATMUL),
        ("transformers bf16", "aten::mm", ProfileGroup.DENSE_MATMUL),
        (
            "transformers bf16",
            "aten::_scaled_dot_product_flash_attention_for_cpu",
            ProfileGroup.ATTENTION,
        ),
        ("transformers torchao-int8da-int8w", "aten::_int_mm", ProfileGroup.QUANTIZED_MATMUL),
    ],
)
def test_groups_of_real_names(recorded: str, name: str, group: ProfileGroup) -> None:
    assert name in NAMES[recorded], "no trace had it"
    assert load_operator_groups().group_of(name)[0] is group


def test_an_unknown_name_is_other() -> None:
    assert load_operator_groups().group_of("vendor::secret_kernel") == (ProfileGroup.OTHER, False)


def test_prefill_steps_from_arrivals_do_not_depend_on_where_steps_begin() -> None:
    """Four at once, 1.0 s each; the first step had one prompt only, so the last has three."""
    arrivals = [0.4] + [1.4] * 4 + [2.4] * 4 + [3.4] * 4 + [4.4] * 4 + [5.2] * 3
    assert compute_prefill_seconds(arrivals, 4) == pytest.approx((1.0, 1.0))
    even = [float(step) for step in range(1, 9) for _ in range(4)]
    assert compute_prefill_seconds(even, 4) == pytest.approx([1.0] * 5)
    assert compute_prefill_seconds([0.5, 1.0, 2.0, 3.5, 4.5], 1) == pytest.approx((1.0, 1.5))


def test_decode_steps_count_only_while_all_streams_decode() -> None:
    early = [0.0, 1.0, 1.1, 1.2, 1.3, 1.4]
    late = [1.0, 1.1, 1.2, 1.3, 1.4, 1.45]
    assert compute_decode_seconds([early, late]) == pytest.approx((0.1, 0.1, 0.1))


def test_operators_of_another_thread_are_not_of_the_step() -> None:
    spans = [
        Span(1, 0.0, 90.0, "execute_context_0(0)_generation_1(1)", False, None),
        Span(1, 10.0, 20.0, "aten::mm", True, None),
        Span(2, 10.0, 80.0, "aten::mm", True, None),
    ]
    operators, _ = divide_traced_steps(
        ChromeTrace(spans, [], []), [Step(1, 0.0, 100.0)], load_operator_groups()
    )
    assert [one.calls for one in operators] == [1]
    assert operators[0].self_cpu_s == pytest.approx(10e-6)

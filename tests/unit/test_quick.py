"""`bitbench quick`: which point a ladder tries next, what names on a command line mean, and what is said of it."""

import math
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from bitbench.endpoint.endpoint_run import (
    CLIMB_S,
    GROWTH,
    MOST_STREAMS,
    TRIALS,
    Ladder,
    is_server_url,
    make_workload_with_streams,
)
from bitbench.machine.workplace import Workplace
from bitbench.models import hub
from bitbench.planning.plan import plan_study
from bitbench.planning.quick_study import (
    QuickField,
    list_missing_parts,
    make_quick_field,
    make_quick_study,
    parse_quick_study_names,
    write_quick_study,
)
from bitbench.records.trial import Outcome, TrialMetrics, TrialRecord
from bitbench.reports.answers.quick import build_quick_server_report
from bitbench.reports.document.markdown import render_markdown
from bitbench.study.plan import Config, Point
from bitbench.study.study import Study
from bitbench.study.study_file import read_study
from bitbench.study.variant import NO_MODEL
from bitbench.study.workload import Workload
from bitbench.util.errors import StoreError, UsageError
from tests.support.quantize_stand_in import write_model
from tests.support.synthetic import make_plan, make_trial, summarize

LIKE = Workload(
    name="c-1", concurrency=1, input_tokens=8, output_tokens=8, arrival="closed_loop", requests=2
)
ENDPOINT = Config(variant=NO_MODEL, engine="a")


def trial_of(
    workload: Workload, throughput: float, index: int, outcome: Outcome = Outcome.OK
) -> TrialRecord:
    metrics = TrialMetrics(output_throughput=throughput, ttft_p50_s=0.1 * workload.concurrency)
    seconds = (workload.requests or 0) * 8 / throughput
    point = Point(config=ENDPOINT, workload=workload.name)
    return make_trial(point, 0, index, metrics=metrics, duration_s=seconds, outcome=outcome)


def climb(
    server: Callable[[int], float],
    limit_s: float = CLIMB_S,
    outcome: Callable[[int], Outcome] = lambda _: Outcome.OK,
) -> tuple[Study, list[TrialRecord], float]:
    """A server that serves so many tokens a second with so many streams, on a clock that only its trials move."""
    now, trials = 0.0, list[TrialRecord]()
    ladder = Ladder(limit_s, lambda: now)
    study = make_plan(["a"], [make_workload_with_streams(LIKE, 1, 8 / server(1))]).study
    while (point := ladder.next_point(study, trials)) is not None:
        if point not in study.workloads:
            study = study.model_copy(update={"workloads": (*study.workloads, point)})
        trials.append(
            trial_of(point, server(point.concurrency), len(trials), outcome(point.concurrency))
        )
        now += trials[-1].duration_s or 0.0
    return study, trials, now


def levels(study: Study) -> list[int]:
    return [workload.concurrency for workload in study.workloads]


def test_it_climbs_until_throughput_stops_growing_and_then_repeats() -> None:
    study, trials, _ = climb(lambda streams: 80.0 * min(streams, 6))
    assert levels(study) == [1, 2, 4, 8, 16]
    names = [trial.point.workload for trial in trials]
    assert names[:5] == ["c-1", "c-2", "c-4", "c-8", "c-16"]  # the whole curve first
    assert sorted(names) == sorted(TRIALS * names[:5])


def test_it_ends_at_the_most_streams() -> None:
    assert levels(climb(lambda streams: 800.0 * streams)[0])[-1] == MOST_STREAMS


@pytest.mark.parametrize("throughput", [4.0, 40.0, 4000.0])
def test_it_keeps_its_time_whatever_the_server(throughput: float) -> None:
    study, trials, seconds = climb(lambda streams: throughput * min(streams, 3))
    assert seconds <= CLIMB_S
    assert len(study.workloads) > 1
    assert len(trials) >= len(study.workloads)


def test_a_server_that_takes_all_the_time_has_one_trial() -> None:
    assert len(climb(lambda _: 0.1)[1]) == 1


def test_a_point_that_fails_ends_the_climb_and_is_not_repeated() -> None:
    study, trials, _ = climb(
        lambda _: 80.0, outcome=lambda streams: Outcome.CRASHED if streams == 2 else Outcome.OK
    )
    assert levels(study) == [1, 2]
    assert [trial.point.workload for trial in trials].count("c-2") == 1


def test_what_this_machine_spoiled_is_tried_again_and_then_given_up() -> None:
    rejected = climb(lambda streams: 80.0 * streams, outcome=lambda _: Outcome.CLIENT_BOUND)[1]
    assert [trial.point.workload for trial in rejected] == TRIALS * ["c-1"]


def test_it_climbs_on_after_a_trial_that_this_machine_spoiled() -> None:
    outcomes = iter([Outcome.CLIENT_BOUND])
    study, _, _ = climb(
        lambda streams: 80.0 * min(streams, 6), outcome=lambda _: next(outcomes, Outcome.OK)
    )
    assert levels(study) == [1, 2, 4, 8, 16]


def server_text(throughput: dict[int, float]) -> str:
    points = [make_workload_with_streams(LIKE, streams, 0.1) for streams in throughput]
    plan = make_plan(["a"], points)
    trials = [
        trial_of(point, served, 0)
        for point, served in zip(points, throughput.values(), strict=True)
    ]
    answer = build_quick_server_report(
        summarize(plan, trials, []), "http://h:1", GROWTH, Path("quick")
    )
    return " ".join(render_markdown(answer).split())


def test_the_answer_says_where_throughput_ends_to_grow() -> None:
    said = server_text({1: 80.0, 2: 160.0, 4: 300.0, 8: 310.0})
    assert "**300 tok/s with 4 streams; more streams add less than 10 %.**" in said
    assert "1 stream: 80.0 tok/s, TTFT 100 ms. 4 streams: 75.0 tok/s each, TTFT 400 ms." in said
    assert "| 4 | 300 | 400 |" in said
    assert "bitbench load http://h:1 --slo ttft_p99=800ms" in said
    assert "**160 tok/s with 2 streams, and still rising.**" in server_text({1: 80.0, 2: 160.0})
    assert "**80.0 tok/s with 1 stream; more" in server_text({1: 80.0, 2: 81.0})
    assert "**80.0 tok/s with 1 stream.**" in server_text({1: 80.0})


@pytest.mark.parametrize(
    "word", ["http://127.0.0.1:8000", "localhost:8000", "host:8000/v1", "https://host"]
)
def test_a_server_is_told_from_a_model(word: str) -> None:
    assert is_server_url(word)


@pytest.mark.parametrize(
    "word", ["smollm2-135m", "acme/Tiny-GGUF:Q4_K_M", "acme/Tiny:8", "shape:qwen3-4b", "./a.gguf"]
)
def test_a_model_is_told_from_a_server(word: str) -> None:
    assert not is_server_url(word)


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workplace:
    monkeypatch.chdir(tmp_path)
    return Workplace(tmp_path / "home", asked_device="cpu")


def text(value: str) -> bytes:
    content = value.encode()
    return struct.pack("<Q", len(content)) + content


def a_gguf(path: Path, weights: int) -> Path:
    """A model of one matrix, with a vocabulary of words."""
    tokens = ["<s>", *(f"Ġ{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(300))]
    values = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("llama.block_count") + struct.pack("<II", 4, 2),
        text("llama.context_length") + struct.pack("<II", 4, 2048),
        text("llama.embedding_length") + struct.pack("<II", 4, 64),
        text("llama.attention.head_count") + struct.pack("<II", 4, 4),
        text("llama.rope.freq_base") + struct.pack("<If", 6, 1e4),
        text("tokenizer.ggml.tokens")
        + struct.pack("<IIQ", 9, 8, len(tokens))
        + b"".join(map(text, tokens)),
        text("tokenizer.ggml.token_type")
        + struct.pack(f"<IIQ{len(tokens)}i", 9, 5, len(tokens), 3, *[1] * 300),
    ]
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, len(values)) + b"".join(values)
    header += text("token_embd.weight") + struct.pack("<I2QIQ", 2, 64, weights // 64, 8, 0)
    path.write_bytes(header + bytes(math.ceil(weights * 34 / 32)))
    return path


def test_recipes_of_a_model_are_compared_with_it_unquantized(at: Workplace) -> None:
    field = make_quick_field(
        parse_quick_study_names(["smollm2-135m", "gguf-q4_0", "gguf-q8_0"]), at
    )
    assert field == QuickField(
        "smollm2-135m", ("gguf-bf16", "gguf-q4_0", "gguf-q8_0"), (), ("llamacpp",)
    )
    study = make_quick_study(field, at, "quick-1")
    assert study.baseline == "smollm2-135m/gguf-bf16 @ llamacpp"
    assert [(workload.name, workload.concurrency) for workload in study.workloads] == [
        ("one", 1),
        ("eight", 8),
    ]
    assert study.quality is not None


def test_what_is_missing_is_named_with_its_costs_in_the_order_of_creation(at: Workplace) -> None:
    lacking = list_missing_parts(
        make_quick_field(parse_quick_study_names(["smollm2-135m", "gguf-q4_0"]), at), at
    )
    assert [(need.kind, need.name) for need in lacking] == [
        ("environment", "llamacpp"),
        ("environment", "transformers"),
        ("model", "smollm2-135m"),
        ("variant", "gguf-bf16"),
        ("variant", "gguf-q4_0"),
    ]
    assert all(need.seconds and need.size_bytes for need in lacking)


def test_recipes_for_vllm_run_there_and_start_sooner(at: Workplace) -> None:
    write_model(Path("tiny"))
    field = make_quick_field(parse_quick_study_names(["tiny", "w8a8-rtn"]), at)
    assert (field.recipes, field.engines) == (("bf16", "w8a8-rtn"), ("vllm",))
    assert make_quick_study(field, at, "x").engines[0].args == {"enforce-eager": True}
    on_gpu = Workplace(at.home, asked_device="cuda")
    assert (
        make_quick_study(
            make_quick_field(parse_quick_study_names(["tiny", "w8a8-rtn"]), on_gpu), on_gpu, "x"
        )
        .engines[0]
        .args
        == {}
    )


def test_the_largest_of_gguf_files_is_the_baseline(at: Workplace) -> None:
    small, large = (
        a_gguf(Path("m-Q4_0.gguf"), 64 * 64).resolve(),
        a_gguf(Path("m-Q8_0.gguf"), 64 * 128).resolve(),
    )
    field = make_quick_field(parse_quick_study_names([str(small), "m-Q8_0.gguf"]), at)
    assert (field.origin, field.engines) == (None, ("llamacpp",))
    study = make_quick_study(field, at, "x")
    assert study.models == (str(large),)
    assert study.baseline == "m-Q8_0/gguf-q8_0 @ llamacpp"
    base, other = plan_study(study, at).variants
    assert (base.path, other.path, other.recipe) == (large, small, "gguf-q4_0")
    assert base.facts == other.facts  # which its header says
    assert (base.facts.layers, base.facts.context_tokens, base.facts.special_token_ids) == (
        2,
        2048,
        (0,),
    )
    assert (base.facts.parameters, base.facts.vocabulary_size, base.facts.head_size) == (
        64 * 128,
        301,
        16,
    )


def test_prompts_for_a_gguf_file_are_of_its_words(at: Workplace) -> None:
    from bitbench.planning.variants import VariantStore

    file = a_gguf(Path("m-Q8_0.gguf"), 64 * 64)
    assert VariantStore(at.home, Path()).words(str(file)) == tuple(range(1, 301))


def test_gguf_files_of_a_hub_are_known_before_they_are_here(
    at: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "hub_download_bytes", lambda reference, **_: len(reference.file))
    names = ["acme/Tiny-GGUF:Q4_K_M", "acme/Tiny-GGUF:Q8_0"]
    field = make_quick_field(parse_quick_study_names(names), at)
    assert field == QuickField(None, ("bf16",), tuple(names), ("llamacpp",))
    lacking = list_missing_parts(field, at)
    assert [(need.kind, need.name, need.size_bytes) for need in lacking[1:]] == [
        ("model", names[0], len("Q4_K_M")),
        ("model", names[1], len("Q8_0")),
    ]


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["gguf-q4_0", "gguf-q8_0"], "name the model before its recipes, such as: bitbench quick"),
        (["smollm2-135m"], "name what to compare it with"),
        (
            ["smollm2-135m", "gguf-q4-0"],
            "gguf-q4-0 is neither a model .* did you mean `gguf-q4_0`?",
        ),
        (["smollm2-135m", "nothing.gguf"], "nothing.gguf is neither a model"),
    ],
)
def test_names_that_mean_nothing_are_an_error(
    names: list[str], problem: str, at: Workplace
) -> None:
    with pytest.raises(UsageError, match=problem):
        make_quick_field(parse_quick_study_names(names), at)


def test_recipes_need_a_model_that_is_not_quantized(at: Workplace) -> None:
    a_gguf(Path("m-Q8_0.gguf"), 64 * 64)
    with pytest.raises(UsageError, match="gguf-q4_0 starts from a model that is not quantized"):
        make_quick_field(parse_quick_study_names(["m-Q8_0.gguf", "gguf-q4_0"]), at)


def test_the_study_is_a_file_to_go_on_from_and_no_other_is_overwritten(at: Workplace) -> None:
    field = make_quick_field(parse_quick_study_names(["smollm2-135m", "gguf-q4_0"]), at)
    study = make_quick_study(field, at, "first")
    source = write_quick_study(study, Path("first"))
    assert source.file is not None
    assert read_study(source.file)[0] == study
    assert "bitbench run first.yaml --into first" in source.text
    write_quick_study(study, Path("first"))
    source.file.write_text("name: mine")
    with pytest.raises(StoreError, match=r"first\.yaml exists and is another study"):
        write_quick_study(study, Path("first"))

"""An engine's own counters: read around each trial, within limits, and never the failure of one."""

import itertools
import re
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bitbench.analysis.summarize import summarize
from bitbench.engines import llamacpp, sglang, vllm
from bitbench.features.explain.computing import compute_explanation
from bitbench.features.explain.words import build_explanation_document
from bitbench.ports import Endpoint, LoadJob, LoadResult, Vocabulary
from bitbench.records.profile import Phase
from bitbench.records.trial import EngineMetrics, Memory, TrialRecord
from bitbench.reports.document.markdown import render_markdown
from bitbench.reports.sections.memory import build_engine_section
from bitbench.reports.study import build_study_report
from bitbench.running.trial import ReadyInstance, engine_metrics, read_engine_metrics, run_trial
from bitbench.study.plan import Config
from bitbench.study.study import Study
from bitbench.study.variant import NO_MODEL
from bitbench.study.workload import BUILT_IN_WORKLOADS
from bitbench.util.http import connection
from bitbench.util.http.connection import read_samples
from tests.features.explain.explain_records import PLAIN, QUANTIZED, evidence
from tests.support.raw_server import (
    Answerer,
    Asked,
    drip,
    flood,
    plain,
    send,
    send_and_reset,
    serving,
)
from tests.support.synthetic import demo_study, load_result, make_records, request_rows
from tests.unit.test_model_cost import SMOLLM2

# As prometheus_client writes it in vLLM, shortened.
VLLM = """\
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="model"} 3.0
vllm:num_requests_waiting{engine="1",model_name="model"} 1.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="model"} 0.25
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="a } 9"} PREEMPTIONS
vllm:num_preemptions_total{engine="1",model_name="model"} 2 1700000000000
# TYPE vllm:num_preemptions_created gauge
vllm:num_preemptions_created{engine="0",model_name="model"} 1.7628e+09
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="model"} 1.5e+03
# TYPE vllm:request_queue_time_seconds histogram
vllm:request_queue_time_seconds_bucket{engine="0",le="0.3",model_name="model"} 5.0
vllm:request_queue_time_seconds_bucket{engine="0",le="+Inf",model_name="model"} 8.0
vllm:request_queue_time_seconds_count{engine="0",model_name="model"} QUEUED
vllm:request_queue_time_seconds_sum{engine="0",model_name="model"} 2.0
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0"} DRAFTS
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 30.0
"""
LLAMACPP = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed, excluding cached tokens
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total {tokens}
# TYPE llamacpp:prompt_tokens_cached_total counter
llamacpp:prompt_tokens_cached_total 64
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 2
"""
# What SGLang's own collectors give its /metrics, without a server: they were told of two requests, shortened.
SGLANG = (Path(__file__).parent / "data" / "sglang-0.5.23-metrics.txt").read_text(encoding="utf-8")


def vllm_says(preemptions: float = 0, queued: float = 0, drafts: float = 0) -> str:
    said = VLLM.replace("PREEMPTIONS", str(preemptions)).replace("QUEUED", str(queued))
    return said.replace("DRAFTS", str(drafts))


def endpoint(url: str = "http://127.0.0.1:1", metrics: dict[str, str] | None = None) -> Endpoint:
    return Endpoint(
        url, "model", "a-secret-key", metrics=vllm._METRICS if metrics is None else metrics
    )


def test_samples_are_summed_over_labels_and_of_gauges_the_largest_counts() -> None:
    found = read_samples(vllm_says(preemptions=5, queued=8))
    assert found.values["vllm:num_requests_waiting"] == 3
    assert found.values["vllm:num_preemptions_total"] == 7
    assert found.kinds["vllm:request_queue_time_seconds"] == "histogram"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "a",
        "a b",
        "a NaN",
        "a +Inf",
        "a 1e999",
        "a{ 1",
        "# TYPE a",
        "1a 3",
        "<html>a 3</html>",
        "ä 3",
        "a" * 3_000 + " 3",
    ],
)
def test_what_is_no_sample_is_passed_over(text: str) -> None:
    assert read_samples(f"{text}\nb 2\n").values == {"b": 2.0}


def test_lines_without_end_are_not_read_to_the_end() -> None:
    assert (
        len(read_samples("".join(f"a{number} 1\n" for number in range(100_000))).values) == 20_000
    )


def test_counters_are_what_they_grew_by_and_gauges_what_they_show() -> None:
    before = read_samples(vllm_says(1, 4, 10))
    after = read_samples(
        vllm_says(4, 8, 20).replace('_sum{engine="0",model_name="model"} 2.0', "_sum 3.0")
    )
    found = engine_metrics(endpoint(), before, after)
    assert found is not None
    assert (found.preemptions, found.waiting, found.kv_use) == (3, 3, 0.25)
    assert found.queue_s == 1.0 / 4
    assert (found.drafts, found.accepted_tokens) == (10, 0)
    assert found.cached_tokens is None  # this one does not say
    assert found.raw["vllm:request_queue_time_seconds_count"] == 4
    assert found.raw["vllm:num_preemptions_total"] == 3


def test_sglang_counts_by_its_own_names() -> None:
    asked, after = endpoint(metrics=sglang._METRICS), read_samples(SGLANG)
    found = engine_metrics(
        asked, read_samples(""), after
    )  # before its first request it names no counter
    assert found is not None
    assert (found.waiting, found.kv_use, found.preemptions) == (3, 0.25, 2)
    assert (found.prompt_tokens, found.cached_tokens) == (256, 32)
    assert found.queue_s == pytest.approx(0.2)
    assert found.raw.keys() == {
        *("sglang:num_queue_reqs", "sglang:token_usage", "sglang:num_retracted_requests_total"),
        *("sglang:prompt_tokens_total", "sglang:cached_tokens_total"),
        *("sglang:queue_time_seconds_sum", "sglang:queue_time_seconds_count"),
    }
    unmoved = engine_metrics(asked, after, after)
    assert unmoved is not None
    assert (unmoved.preemptions, unmoved.cached_tokens, unmoved.queue_s, unmoved.waiting) == (
        0,
        0,
        None,
        3,
    )


def test_a_counter_that_began_again_says_nothing() -> None:
    found = engine_metrics(endpoint(), read_samples(vllm_says(5)), read_samples(vllm_says(1)))
    assert found is not None
    assert found.preemptions is None
    assert "vllm:num_preemptions_total" not in found.raw


def test_figures_of_engines_are_those_of_the_record() -> None:
    for metrics in (vllm._METRICS, llamacpp._METRICS, sglang._METRICS):
        assert metrics.keys() <= EngineMetrics.model_fields.keys() - {"raw"}


def test_it_is_asked_with_the_key_and_an_engine_without_figures_not_at_all() -> None:
    with serving(send(plain(LLAMACPP.format(tokens=7).encode()))) as server:
        found = read_engine_metrics(endpoint(server.url, llamacpp._METRICS))
        assert found is not None
        assert found.values["llamacpp:prompt_tokens_total"] == 7
        assert read_engine_metrics(endpoint(server.url, {})) is None
        assert [(asked.path, asked.authorization) for asked in server.asked] == [
            ("/metrics", "Bearer a-secret-key")
        ]


@pytest.mark.parametrize(
    "answer",
    [
        send(plain(b"{}", "501 Not Implemented")),
        send(b"no HTTP\r\n\r\n"),
        send_and_reset(b"HTTP/1.1 200 OK\r\n"),
        flood(b"HTTP/1.1 200 OK\r\nContent-Length: 900000000\r\n\r\n", b"a 1\n" * 10_000),
        drip(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n", b"a 1\n" * 225),
        send(),
    ],
)
def test_a_server_that_does_not_say_is_left_alone(
    answer: Answerer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_LIMIT_S", 0.3)
    with serving(answer) as server:
        assert read_engine_metrics(endpoint(server.url)) is None
    assert read_engine_metrics(endpoint("http://127.0.0.1:9")) is None


class Client:
    """One request, answered."""

    def run(self, job: LoadJob, on_progress: object = None) -> LoadResult:
        row = {"planned_s": 0.0, "chunk_s": [0.1, 0.2], "asked_input_tokens": 1, "input_tokens": 1}
        return load_result(request_rows(row))


def trial(answer: Answerer, tmp_path: Path) -> TrialRecord:
    workload = BUILT_IN_WORKLOADS["interactive"]
    study = Study.model_validate({"name": "x", "engines": ["null"], "workloads": ["interactive"]})
    with serving(answer) as server:
        ready = ReadyInstance(
            "i1",
            Config(variant=NO_MODEL, engine="null"),
            0,
            SimpleNamespace(failure=lambda: None, pid=None),  # type: ignore[arg-type]
            endpoint(server.url, llamacpp._METRICS),
            Vocabulary(100),
            SimpleNamespace(failure=None, read=Memory),  # type: ignore[arg-type]
        )
        observer = SimpleNamespace(
            trial_started=lambda *_, **__: None, trial_running=lambda _: None
        )
        plan = SimpleNamespace(study=study)
        context = SimpleNamespace(
            plan=plan,
            load=Client(),
            folder=tmp_path,
            rows_folder=None,
            observer=observer,
            on_device=False,
        )
        alone = workload.model_copy(update={"concurrency": 1})
        return run_trial(ready, alone, "measured", 0, context).record  # type: ignore[arg-type]


def test_a_trial_records_what_its_engine_counted_meanwhile(tmp_path: Path) -> None:
    numbers = itertools.count(100, 128)

    def answer(connected: socket.socket, asked: Asked) -> None:
        connected.sendall(plain(LLAMACPP.format(tokens=next(numbers)).encode()))

    record = trial(answer, tmp_path)
    assert record.engine_metrics is not None
    assert record.engine_metrics.prompt_tokens == 128
    assert record.engine_metrics.cached_tokens == 0
    assert record.engine_metrics.raw["llamacpp:requests_deferred"] == 2
    assert TrialRecord.model_validate_json(record.model_dump_json()) == record


def test_a_trial_counts_without_them_and_repeats_no_word_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_LIMIT_S", 0.3)
    assert (
        trial(send(plain(b"no", "404 Not Found")), tmp_path).outcome
        == trial(send(), tmp_path).outcome
    )
    said = '# TYPE llamacpp:requests_deferred gauge\nllamacpp:requests_deferred{x="a-secret-key"} 1\nstranger 5\n'
    text = trial(send(plain(said.encode())), tmp_path).model_dump_json()
    assert "llamacpp:requests_deferred" in text
    assert "secret" not in text
    assert "stranger" not in text


def test_the_report_shows_what_was_counted_and_nothing_where_nothing_was() -> None:
    plan, trials, instances, lock = demo_study()
    assert build_engine_section(summarize(make_records(plan, trials, instances))) is None
    counted = EngineMetrics(
        preemptions=2, queue_s=0.5, drafts=10, draft_tokens=40, accepted_tokens=15
    )
    told = [
        one.model_copy(update={"engine_metrics": counted}) if one.counts else one for one in trials
    ]
    summary = summarize(make_records(plan, told, instances))
    engine = summary.points[0].engine
    assert engine is not None
    assert (engine.acceptance_length, engine.acceptance_rate, engine.queue_s) == (2.5, 0.375, 0.5)
    assert engine.preemptions == 2 * engine.trials
    text = render_markdown(build_study_report(summary, lock))
    assert "## What the engines counted" in text
    assert "Preempted" in text
    assert "Cached" not in text  # no engine says it
    assert "*Accepted*: tokens of a step that begins with a draft" in text


def test_an_explanation_has_both_sides() -> None:
    records = evidence(lambda one, _: 0.030 if one == PLAIN else 0.036)
    counted = EngineMetrics(waiting=1, cached_tokens=0)
    told = [one.model_copy(update={"engine_metrics": counted}) for one in records.trials]
    found = compute_explanation(
        replace(records, trials=told), QUANTIZED, PLAIN, records.study.workloads[0]
    )
    part = (
        render_markdown(build_explanation_document(found))
        .partition("## What the engines counted")[2]
        .partition("\n## ")[0]
    )
    rows = [re.findall(r"\w+", line) for line in part.splitlines()]
    assert ["variant", "1", "0"] in rows
    assert ["baseline", "1", "0"] in rows


@pytest.mark.parametrize("bits", [16, 8])
def test_what_a_step_reads_counts_the_cache_as_the_engine_keeps_it(bits: int) -> None:
    records = evidence(lambda *_: 0.030)
    facts = SMOLLM2.kv_bytes_per_token(2)
    assert facts is not None
    per_token = facts * bits // 16
    kept = [
        one.model_copy(
            update={"facts": one.facts.model_copy(update={"kv_bytes_per_token": per_token})}
        )
        for one in records.instances
    ]
    workload = records.study.workloads[0]
    found = compute_explanation(replace(records, instances=kept), QUANTIZED, PLAIN, workload)
    (decode,) = (one for one in found.phases if one.phase is Phase.DECODE)
    assert decode.own.cost is not None
    assert decode.own.cost.kv_bytes == (128 + 32 / 2 + 1) * per_token

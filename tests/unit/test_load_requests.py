"""The plan of a trial: exact lengths, shares, histories and times, the same for the same seed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bitbench.loadgen.client import WorkerPart
from bitbench.loadgen.inputs import check_input_files, hash_input_files
from bitbench.loadgen.requests import PlannedRequest, plan_requests
from bitbench.ports import Endpoint, LoadJob, Vocabulary
from bitbench.study.base import Json
from bitbench.study.workload import Workload
from bitbench.util.errors import StudyFileError

VOCABULARY = Vocabulary(5_000, excluded=(0, 1))


def job(folder: Path = Path(), seed: tuple[int, ...] = (1, 2), **asked: Json) -> LoadJob:
    workload = Workload.model_validate(
        {"name": "w", "input_tokens": 40, "output_tokens": 5, **asked}
    )
    endpoint = Endpoint("http://h:1", "m", "k", batch_header="X-Batch")
    return LoadJob(endpoint, workload, VOCABULARY, seed, 9.0, 9.0, folder=folder)


def plan(
    folder: Path = Path(), seed: tuple[int, ...] = (1, 2), **asked: Json
) -> list[PlannedRequest]:
    return list(plan_requests(job(folder, seed, **asked)))


def body(request: PlannedRequest) -> Json:
    return json.loads(request.data.partition(b"\r\n\r\n")[2])


def prompts(requests: list[PlannedRequest]) -> list[Json]:
    return [body(request)["prompt"] for request in requests]


def test_an_answer_that_may_end_early_is_not_forced() -> None:
    forced = replace(
        job(concurrency=1).endpoint, extra_body={"ignore_eos": True, "cache_prompt": False}
    )
    for output_forced, expected in (
        (True, {"ignore_eos": True, "cache_prompt": False}),
        (False, {"cache_prompt": False}),
    ):
        (request,) = plan_requests(
            replace(job(concurrency=1, output_forced=output_forced), endpoint=forced)
        )
        assert {
            name: body(request)[name] for name in forced.extra_body if name in body(request)
        } == expected


def test_a_batch_is_due_at_once_on_a_stream_each() -> None:
    requests = plan(concurrency=3)
    assert [(one.number, one.stream, one.at_s) for one in requests] == [
        (0, 0, 0.0),
        (1, 1, 0.0),
        (2, 2, 0.0),
    ]
    assert {len(prompt) for prompt in prompts(requests)} == {40}
    assert b"X-Batch: 3\r\n" in requests[0].data


def test_a_closed_loop_goes_round() -> None:
    requests = plan(concurrency=2, arrival="closed_loop", requests=5)
    assert [(one.stream, one.at_s) for one in requests] == [
        (0, 0.0),
        (1, 0.0),
        (0, None),
        (1, None),
        (0, None),
    ]


OPEN_LOOPS: list[Json] = [
    {"arrival": {"kind": "poisson", "rate": 100}, "requests": 300},
    {"arrival": {"kind": "poisson", "rate": 100}, "duration": "2s"},
    {
        "arrival": {"kind": "constant", "rate": 25},
        "duration": "4s",
        "input_tokens": {"min": 3, "max": 90},
    },
    {"arrival": {"kind": "constant", "rate": 10}, "requests": 12, "conversation": {"turns": 3}},
    {
        "arrival": {"kind": "poisson", "rate": 9},
        "requests": 40,
        "shared_prefix": {"tokens": 16, "share": "50%"},
    },
]


@pytest.mark.parametrize("asked", OPEN_LOOPS)
def test_one_seed_gives_the_same_requests_at_the_same_times(asked: Json) -> None:
    assert plan(**asked) == plan(**asked)
    assert [one.data for one in plan(**asked)] != [one.data for one in plan(seed=(1, 3), **asked)]


def test_an_open_loop_waits_for_nobody_and_names_no_batch() -> None:
    requests = plan(arrival={"kind": "poisson", "rate": 100}, requests=50)
    assert all(one.stream is None and one.at_s is not None for one in requests)
    assert [one.at_s for one in requests] == sorted(one.at_s or 0.0 for one in requests)
    assert not any(b"X-Batch" in one.data for one in requests)


def test_lengths_vary_as_asked_and_each_is_exact() -> None:
    requests = plan(
        concurrency=400,
        input_tokens={"mean": 100, "sd": 30, "min": 50, "max": 130},
        output_tokens={"min": 2, "max": 9},
    )
    lengths = [len(prompt) for prompt in prompts(requests)]
    assert lengths == [one.asked_input_tokens for one in requests]
    assert (min(lengths), max(lengths)) == (50, 130)
    assert sum(lengths) / 400 == pytest.approx(
        97, abs=5
    )  # a little below the mean: more is cut above than below
    asked = [one.asked_output_tokens for one in requests]
    assert set(asked) == set(range(2, 10))
    assert asked == [body(one)["max_tokens"] for one in requests]


def test_a_shared_prefix_has_its_length_and_its_share_and_nothing_more_is_shared() -> None:
    requests = plan(concurrency=200, shared_prefix={"tokens": 16, "share": "30%"})
    all_prompts = prompts(requests)
    assert {len(prompt) for prompt in all_prompts} == {40}
    beginnings = [tuple(prompt[:16]) for prompt in all_prompts]
    shared = [one for one in beginnings if beginnings.count(one) > 1]
    assert len(shared) == 60
    assert len(set(shared)) == 1
    after = [
        prompt[16]
        for prompt, beginning in zip(all_prompts, beginnings, strict=True)
        if beginning in set(shared)
    ]
    assert len(set(after)) == 60


def test_a_conversation_carries_its_history() -> None:
    requests = plan(
        concurrency=2, arrival="closed_loop", requests=12, conversation={"turns": 3, "think": "2s"}
    )
    assert [(one.stream, one.at_s, one.think_s) for one in requests] == [
        *[(0, 0.0, 0.0), (1, 0.0, 0.0)],
        *[(0, None, 2.0), (1, None, 2.0)] * 2,
        *[
            (0, None, 0.0),
            (1, None, 0.0),
        ],  # the next two conversations: nobody thinks before the first question
        *[(0, None, 2.0), (1, None, 2.0)] * 2,
    ]
    assert [one.asked_input_tokens for one in requests] == 2 * [40, 40, 85, 85, 130, 130]
    for stream in (0, 1):
        first, second, third, *other = prompts(requests[stream::2])
        assert second[:40] == first
        assert third[:85] == second
        assert other[0][:16] != first[:16]
    assert (
        plan(
            concurrency=2,
            arrival="closed_loop",
            requests=12,
            conversation={"turns": 3, "think": "2s"},
        )
        == requests
    )


def test_conversations_begin_on_schedule_each_on_a_stream_of_its_own() -> None:
    requests = plan(arrival={"kind": "constant", "rate": 2}, requests=6, conversation={"turns": 2})
    assert [(one.stream, one.at_s) for one in requests] == [
        (0, 0.0),
        (1, 0.5),
        (2, 1.0),
        (0, None),
        (1, None),
        (2, None),
    ]


MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 50, "hash_ids": [0, 1, 2]},
    {"timestamp": 500, "input_length": 600, "output_length": 3, "hash_ids": [0]},
    {"timestamp": 500, "input_length": 1024, "output_length": 4, "hash_ids": [0, 1]},
    {"timestamp": 4000, "input_length": 9000, "output_length": 9, "hash_ids": [7]},
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in MOONCAKE))
    return tmp_path


def test_a_trace_gives_times_lengths_and_what_prompts_share(trace: Path) -> None:
    asked: Json = {
        "arrival": {"kind": "trace", "file": "trace.jsonl", "speed": 2},
        "input_tokens": 2000,
    }
    requests = plan(trace, requests=4, **asked)
    assert [one.at_s for one in requests] == [0.0, 0.25, 0.25, 2.0]
    assert [(one.asked_input_tokens, one.asked_output_tokens) for one in requests] == [
        (1100, 5),
        (600, 3),
        (1024, 4),
        (2000, 5),  # cut to what the workload allows
    ]
    first, second, third, fourth = prompts(requests)
    assert [len(one) for one in (first, second, third, fourth)] == [1100, 600, 1024, 2000]
    assert first[:512] == second[:512] == third[:512]
    assert first[:1024] == third
    assert first[512:600] != second[512:]
    assert fourth[:16] != first[:16]
    assert [one.at_s for one in plan(trace, duration="1s", **asked)] == [0.0, 0.25, 0.25]


def test_a_trace_that_is_too_short_is_said_with_its_field(trace: Path) -> None:
    asked = job(arrival={"kind": "trace", "file": "trace.jsonl"}, requests=5).workload
    with pytest.raises(StudyFileError, match=r"has 4 requests, but the workload needs 5") as caught:
        check_input_files([asked], trace)
    assert caught.value.location == ("workloads", 0, "arrival", "file")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    lines = [{"prompt": f"text {number}"} for number in range(4)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def test_texts_come_in_random_order_once_each_and_then_again(texts: Path) -> None:
    requests = plan(texts, concurrency=6, text={"file": "t.jsonl"})
    asked = prompts(requests)
    assert sorted(asked[:4]) == [f"text {number}" for number in range(4)]
    assert asked[4:] == asked[:2]
    assert {(one.asked_input_tokens, one.asked_output_tokens) for one in requests} == {(None, 5)}
    orders = {
        tuple(prompts(plan(texts, (seed,), concurrency=4, text={"file": "t.jsonl"})))
        for seed in range(9)
    }
    assert len(orders) > 2


def test_chat_asks_with_messages(texts: Path) -> None:
    (request,) = plan(texts, concurrency=1, api="chat", text={"file": "t.jsonl"})
    assert request.data.startswith(b"POST /v1/chat/completions ")
    assert body(request)["messages"][0]["content"].startswith("text ")


def test_texts_that_cannot_be_used_are_said_before_anything_starts(texts: Path) -> None:
    long = job(concurrency=1, text={"file": "none.jsonl"}).workload
    with pytest.raises(StudyFileError, match="No such file") as caught:
        check_input_files([job(concurrency=1).workload, long], texts)
    assert caught.value.location == ("workloads", 1, "text", "file")
    (texts / "m.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    messages = job(concurrency=1, text={"file": "m.jsonl"}).workload
    with pytest.raises(StudyFileError, match="which need `api: chat`") as caught:
        check_input_files([job(concurrency=1).workload, messages], texts)
    assert caught.value.location == ("workloads", 1, "text", "file")
    check_input_files([job(concurrency=1, api="chat", text={"file": "m.jsonl"}).workload], texts)


def test_files_are_hashed_by_the_name_that_the_study_gives_them(texts: Path) -> None:
    workload = job(concurrency=1, text={"file": "t.jsonl"}).workload
    before = hash_input_files([workload, job(concurrency=1).workload], texts)
    assert list(before) == ["t.jsonl"]
    (texts / "t.jsonl").write_text('{"prompt": "other"}\n')
    assert hash_input_files([workload], texts) != before


@pytest.mark.parametrize("arrival", [{"kind": "poisson", "rate": 5}, "closed_loop"])
@pytest.mark.parametrize("workers", [2, 3, 8])
def test_parts_together_are_the_plan(arrival: Json, workers: int) -> None:
    """However it is divided: the same bytes at the same times, whole streams with one worker."""
    asked = {
        "concurrency": 5,
        "input_tokens": {"min": 4, "max": 9},
        "requests": 17,
        "arrival": arrival,
    }
    parts = [
        plan_requests(job(**asked), WorkerPart(place, workers).owns) for place in range(workers)
    ]
    assert sorted((one for part in parts for one in part), key=lambda one: one.number) == plan(
        **asked
    )
    for place, part in enumerate(parts):
        assert {(one.number if one.stream is None else one.stream) % workers for one in part} <= {
            place
        }

"""What is read out of a stream once it has ended."""

import json

import pytest

from bitbench.util.http.connection import describe_error
from bitbench.util.http.response import ResponseReader
from tests.support.streamed_answer import read_answer

USAGE = {"prompt_tokens": 5, "completion_tokens": 3}


def answer_to(*messages: object, done: bool = True) -> tuple[object, ...]:
    """Each message arrives at the second of its place, from 1."""
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 200 OK\r\n\r\n", 0.0)
    for second, message in enumerate(messages, start=1):
        reader.feed(b"data: " + json.dumps(message).encode() + b"\n\n", float(second))
    if done:
        reader.feed(b"data: [DONE]\n\n", 99.0)
    return read_answer(reader, key="")


def token(text: str, finish_reason: str | None = None) -> dict[str, object]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}], "usage": None}


def test_chunks_and_usage() -> None:
    assert answer_to(
        token("a"), token("b"), token("c", "length"), {"choices": [], "usage": USAGE}
    ) == (
        [1.0, 2.0, 3.0],
        1.0,
        5,
        3,
        None,
        None,
        2,
    )


@pytest.mark.parametrize(
    ("details", "cached"),
    [
        ({"cached_tokens": 4}, 4),
        ({"cached_tokens": 0}, 0),
        ({}, None),
        (None, None),
        ({"cached_tokens": -1}, None),
        ([], None),
    ],
)
def test_cached_tokens_are_those_of_the_usage(details: object, cached: int | None) -> None:
    assert (
        answer_to(*[token("a")] * 3, {"usage": {**USAGE, "prompt_tokens_details": details}})[5]
        == cached
    )


def test_a_token_without_text_counts() -> None:
    """Half a character decodes to nothing, in the middle of a stream and at its end."""
    assert answer_to(token("é"), token(""), token("", "length"), {"usage": USAGE})[0] == [
        1.0,
        2.0,
        3.0,
    ]


def test_the_first_token_is_the_first_chunk_with_text() -> None:
    pings = [token("")] * 4
    assert answer_to(*pings, *[token("a")] * 3, {"usage": USAGE})[:2] == ([5.0, 6.0, 7.0], 5.0)
    between = answer_to(token("a"), token(""), token("b"), token(""), token("c"), {"usage": USAGE})
    assert between[0] == [1.0, 3.0, 5.0], "more chunks than tokens: the empty ones are not tokens"


def test_tokens_without_any_text_came_with_the_latest_chunks() -> None:
    assert answer_to(*[token("")] * 4, token("", "length"), {"usage": USAGE})[0] == [3.0, 4.0, 5.0]


@pytest.mark.parametrize(
    ("texts", "tokens", "timed"),
    [
        (["a"] * 8, 8, 7),
        (["w" * 8] * 4, 32, 24),
        (["w" * 8] * 2 + ["w" * 4], 20, 0),  # twelve tokens by their text, known to ± 9 % only
        (["w" * 8] * 16 + ["w" * 4], 132, 124),
        (["w"] + ["www"] * 20, 61, 60),  # a draft's tokens come together, the prefill's alone
        (["w"] * 60, 64, 63),  # parts of characters are held back
        (["w" * 40] + ["w"] * 24, 64, 0),  # a filter held the first 40 back
        (["w" * 31, "w"], 32, 0),
        (["w" * 32], 32, 0),
        (["w"], 1, 0),
    ],
)
def test_tokens_after_the_first_chunk(texts: list[str], tokens: int, timed: int) -> None:
    usage = {"usage": {"prompt_tokens": 5, "completion_tokens": tokens}}
    assert answer_to(*map(token, texts), usage)[6] == timed


def test_an_empty_chunk_that_only_says_the_end_does_not_count() -> None:
    assert answer_to(token("a"), token("b"), token("c"), token("", "length"), {"usage": USAGE})[
        0
    ] == [1.0, 2.0, 3.0]


def delta(finish_reason: str | None = None, **parts: str) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": parts, "finish_reason": finish_reason}]}


def test_a_chat_begins_with_its_role_which_is_no_token() -> None:
    times, first_answer, *_ = answer_to(
        delta(role="assistant", content=""), delta(content="a"), delta(content=""), delta("length", content="c"),
        {"choices": [], "usage": USAGE},
    )  # fmt: skip
    assert times == [2.0, 3.0, 4.0]
    assert first_answer == 2.0


def test_a_chat_whose_last_token_is_in_the_chunk_that_ends_it() -> None:
    assert answer_to(delta(content="a"), delta(content="b"), delta("length"), {"usage": USAGE})[
        0
    ] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_output_but_no_answer(field: str) -> None:
    times, first_answer, *_ = answer_to(
        delta(role="assistant"),
        delta(**{field: "hm"}),
        delta(**{field: ""}),
        delta(content="Yes"),
        {"usage": USAGE},
    )
    assert times == [2.0, 3.0, 4.0]
    assert first_answer == 4.0


def test_reasoning_alone_has_no_answer() -> None:
    times, first_answer, *_ = answer_to(
        delta(reasoning="hm"), delta(reasoning="so"), {"usage": USAGE}
    )
    assert times == [1.0, 2.0]
    assert first_answer is None


def test_a_call_of_a_tool_is_an_answer() -> None:
    called = {"choices": [{"delta": {"tool_calls": [{"index": 0}]}, "finish_reason": None}]}
    assert answer_to(delta(reasoning="hm"), called, {"usage": USAGE})[1] == 2.0


@pytest.mark.parametrize(
    ("messages", "done", "said"),
    [
        ([token("a"), {"usage": USAGE}], False, "without [DONE]"),
        ([token("a")], True, "without usage"),
        ([token("a"), {"error": {"message": "engine died"}}], True, "engine died"),
        ([token("a"), 7, {"usage": USAGE}], True, "not a JSON object: 7"),
        ([{"usage": {"prompt_tokens": "5", "completion_tokens": True}}], True, "without usage"),
        ([{"choices": {"0": 1}, "usage": [1]}], True, "without usage"),
    ],
)
def test_what_is_missing_is_said(messages: list[object], done: bool, said: str) -> None:
    problem = answer_to(*messages, done=done)[4]
    assert isinstance(problem, tuple)
    assert problem[0] == "broken"
    assert said in problem[1]


def test_more_chunks_with_text_than_tokens_contradict_each_other() -> None:
    sentence = "the stream has 4 chunks with text, but its usage counts 3 output tokens"
    assert answer_to(*[token("a")] * 4, {"usage": USAGE})[4] == ("contradictory", sentence)
    assert answer_to(*[token("a")] * 3, token(""), {"usage": USAGE})[4] is None, (
        "an empty chunk claims no token"
    )


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "too long", "code": 400}}', "too long"),
        (b'{"error": "too long"}', "too long"),
        (b'{"object": "error", "message": "too long"}', "too long"),
        (b'{"detail": "too long"}', "too long"),
        (b"<h1>Bad\n gateway</h1>", "<h1>Bad gateway</h1>"),
        (b"", "no explanation"),
    ],
)
def test_a_server_is_quoted(body: bytes, said: str) -> None:
    assert describe_error(body, "") == said


def test_a_long_quotation_is_shortened() -> None:
    assert len(describe_error(b"x" * 100_000, "")) == 400

"""Prompts: exact, fresh, reproducible, never special."""

import json

import pytest

from bitbench.core.ports import Endpoint, Vocabulary
from bitbench.core.workload import Workload
from bitbench.load.prompts import PromptSource
from bitbench.load.wire import address, completion_request


def test_length_is_exact_and_special_ids_never_appear() -> None:
    source = PromptSource(Vocabulary(size=20, excluded=(0, 7, 19, 400)), seed=(1, 2))
    prompt = source.prompt(0, 5_000)
    assert len(prompt) == 5_000
    assert set(prompt) == set(range(20)) - {0, 7, 19}


def test_the_same_seed_gives_the_same_prompts_and_another_one_others() -> None:
    vocabulary = Vocabulary(size=50_000)
    once, again = (PromptSource(vocabulary, seed=(3, 1)) for _ in range(2))
    other = PromptSource(vocabulary, seed=(3, 2))
    assert once.prompt(5, 64) == again.prompt(5, 64)
    assert once.prompt(5, 64) != other.prompt(5, 64)


def test_no_two_prompts_of_a_trial_share_even_their_first_token() -> None:
    source = PromptSource(Vocabulary(size=300, excluded=(0,)), seed=(0,))
    assert len({source.prompt(number, 1)[0] for number in range(299)}) == 299


def test_a_vocabulary_of_special_ids_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="special"):
        PromptSource(Vocabulary(size=2, excluded=(0, 1)), seed=(0,))


def test_a_request_says_all_that_a_server_must_know() -> None:
    endpoint = Endpoint("http://127.0.0.1:81", "m", "secret", {"ignore_eos": True}, batch_header="X-Batch")
    workload = Workload(name="w", concurrency=8, input_tokens=3, output_tokens=9)
    head, _, body = completion_request(endpoint, workload, [4, 5, 6]).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /v1/completions HTTP/1.1"
    assert {"Authorization: Bearer secret", "X-Batch: 8", "Host: 127.0.0.1:81", f"Content-Length: {len(body)}"} < set(
        lines
    )
    assert json.loads(body) == {
        "model": "m",
        "prompt": [4, 5, 6],
        "max_tokens": 9,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }


@pytest.mark.parametrize("url", ["https://host:1", "http://host:1/v1", "host:1"])
def test_an_address_that_is_not_plain_http_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="http://host:port"):
        address(Endpoint(url, "m", "k"))

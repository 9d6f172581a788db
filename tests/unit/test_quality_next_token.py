"""Log-probabilities and answers from llama.cpp's server, one token at a time."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from bitbench.planning.estimate import guess_quality_s
from bitbench.quality.logprobs import AskingFailed, InstanceConnection
from bitbench.quality.measure import Asker, ask_answers, make_asker, score_windows
from bitbench.records.quality import Prompt
from bitbench.records.trial import Outcome
from bitbench.study.quality import Quality, Scoring
from bitbench.study.variant import ModelFacts, Variant
from tests.support.quality_server import BEGINS_A_CHARACTER, GOES_ON_WITH_A_CHARACTER, QualityServer

WINDOWS = ((1, 5, 9, 2), (3, 3, 8, 4))
PARTS = ((1, BEGINS_A_CHARACTER, GOES_ON_WITH_A_CHARACTER, 5),)


@pytest.fixture
def server() -> Iterator[QualityServer]:
    running = QualityServer()
    yield running
    running.shutdown()
    running.server_close()


@pytest.fixture
def connection(server: QualityServer) -> Iterator[InstanceConnection]:
    with InstanceConnection(server.endpoint, 5.0) as opened:
        yield opened


@pytest.fixture
def asker(connection: InstanceConnection) -> Asker:
    return make_asker(Scoring.NEXT_TOKEN, connection)


@pytest.mark.parametrize("windows", [WINDOWS, PARTS])
def test_both_ways_of_asking_give_the_same_rows(
    connection: InstanceConnection, asker: Asker, windows: tuple[tuple[int, ...], ...]
) -> None:
    asked = score_windows(asker, windows, 3, lambda _: None)
    assert asked == score_windows(
        make_asker(Scoring.PROMPT_LOGPROBS, connection), windows, 3, lambda _: None
    )


def test_each_token_costs_one_request_that_goes_on_from_the_one_before(
    server: QualityServer, asker: Asker
) -> None:
    score_windows(asker, WINDOWS, 3, lambda _: None)
    assert [body["prompt"] for body in server.asked] == [
        [1],
        [1, 5],
        [1, 5, 9],
        [3],
        [3, 3],
        [3, 3, 8],
    ]
    for body in server.asked:
        assert (body["n_predict"], body["n_probs"], body["cache_prompt"], body["id_slot"]) == (
            1,
            3,
            True,
            0,
        )
        assert body["key"] == "Bearer key"


def test_part_of_a_character_is_looked_for_among_the_likeliest(
    server: QualityServer, asker: Asker
) -> None:
    score_windows(asker, PARTS, 3, lambda _: None)
    written = [(body["logit_bias"][0][0], body["n_probs"]) for body in server.asked]
    assert written == [(60, 3), ("a", 1024), (61, 3), ("a", 1024), (5, 3)]


def test_what_vanishes_or_is_no_number_stays_in_the_rows(
    server: QualityServer, asker: Asker
) -> None:
    lowest = -3.4028234663852886e38  # of a 32-bit number
    place = {
        "id": 5,
        "logprob": lowest,
        "top_logprobs": [{"id": 1, "logprob": None}, {"id": 5, "logprob": lowest}],
    }
    server.answers_with = (200, json.dumps({"completion_probabilities": [place]}).encode())
    (found,) = asker.score((1, 5), 2)
    assert found[5] == pytest.approx(-103.28, abs=0.01)
    assert math.isnan(found[1])


def test_answers_are_greedy_and_end_before_a_token_that_ends_a_text(asker: Asker) -> None:
    prompts = (Prompt(text="Why?", tokens=(9, 3)),)
    (whole,) = ask_answers(asker, prompts, 4, (0,), lambda _: None)
    assert whole.tokens == (6, 12, 24, 48)  # twice the last one is the likeliest
    assert whole.text == "FLXp"
    (cut,) = ask_answers(asker, prompts, 4, (24,), lambda _: None)
    assert cut.tokens == (6, 12)


@pytest.mark.parametrize(
    ("answer", "outcome", "message"),
    [
        ((503, b"loading"), Outcome.INVALID, "HTTP 503: loading"),
        ((500, b"out of luck"), Outcome.INVALID, "HTTP 500: out of luck"),
        ((200, b"{}"), Outcome.UNSUPPORTED, "lacks `completion_probabilities`"),
        (
            (
                200,
                b'{"completion_probabilities": [{"id": 5, "logprob": 0, "top_logprobs": [{"id": 5, "logprob": 0}]}]}',
            ),
            Outcome.INVALID,
            "no log-probability for token 9",
        ),
    ],
)
def test_an_answer_that_is_none_becomes_an_outcome(
    server: QualityServer, asker: Asker, answer: tuple[int, bytes], outcome: Outcome, message: str
) -> None:
    server.answers_with = answer
    with pytest.raises(AskingFailed, match=message) as caught:
        asker.score((1, 9), 3)
    assert caught.value.failure.outcome is outcome


def test_a_step_for_each_token_takes_longer_than_a_prompt() -> None:
    facts = ModelFacts(parameters=135_000_000)
    variant = Variant(
        name="v", model="m", recipe="r", path=Path("/m"), weight_bytes=270_000_000, facts=facts
    )
    quality = Quality(windows=10, window_tokens=100, answer_tokens=0)
    steps_s, prompts_s = (
        guess_quality_s(variant, quality, one)
        for one in (Scoring.NEXT_TOKEN, Scoring.PROMPT_LOGPROBS)
    )
    assert steps_s == pytest.approx(1000 * (0.027 + 0.010 + 0.004))
    assert prompts_s == pytest.approx(1000 * (0.0009 + 0.004))

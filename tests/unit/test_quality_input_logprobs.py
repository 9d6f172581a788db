"""Log-probabilities and answers from SGLang's server."""

import json
import math
from collections.abc import Iterator

import pytest

from bitbench.quality.logprobs import AskingFailed, InstanceConnection
from bitbench.quality.measure import Asker, ask_answers, make_asker, score_windows
from bitbench.records.quality import Prompt
from bitbench.records.trial import Outcome
from bitbench.study.quality import Scoring
from tests.support.quality_server import QualityServer

WINDOWS = ((1, 5, 9, 2), (3, 3, 8, 4))


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
    return make_asker(Scoring.INPUT_LOGPROBS, connection)


def test_sglang_and_vllm_are_asked_differently_for_the_same_rows(
    connection: InstanceConnection, asker: Asker, server: QualityServer
) -> None:
    asked = score_windows(asker, WINDOWS, 3, lambda _: None)
    assert [body["input_ids"] for body in server.asked] == [list(window) for window in WINDOWS]
    assert all(body["return_logprob"] and body["logprob_start_len"] == 0 for body in server.asked)
    assert asked == score_windows(
        make_asker(Scoring.PROMPT_LOGPROBS, connection), WINDOWS, 3, lambda _: None
    )


def test_answers_are_those_of_a_completion(asker: Asker, server: QualityServer) -> None:
    (answer,) = ask_answers(asker, (Prompt(text="Why?", tokens=(9, 3)),), 4, (0,), lambda _: None)
    assert answer.tokens == (7, 7, 7, 7)
    assert server.asked[0]["return_token_ids"]


def said(own: object, likeliest: object) -> bytes:
    return json.dumps(
        {"meta_info": {"input_token_logprobs": own, "input_top_logprobs": likeliest}}
    ).encode()


def test_what_is_no_number_stays_in_the_rows(asker: Asker, server: QualityServer) -> None:
    server.answers_with = (200, said([[None, 1, None], [None, 5, None]], [None, [[-0.5, 4, None]]]))
    (place,) = asker.score((1, 5), 1)
    assert place[4] == -0.5
    assert math.isnan(place[5])


@pytest.mark.parametrize(
    ("answer", "outcome", "message"),
    [
        ((400, b"too long"), Outcome.INVALID, "HTTP 400: too long"),
        ((200, b"{}"), Outcome.UNSUPPORTED, "lacks `input_token_logprobs`"),
        ((200, b'{"meta_info": 1}'), Outcome.UNSUPPORTED, "lacks `input_token_logprobs`"),
        (
            (200, said([[None, 1, None]], [None])),
            Outcome.UNSUPPORTED,
            "lacks `input_token_logprobs`",
        ),
        ((200, said([1, 2], [None, 3])), Outcome.INVALID, "not as expected"),
        (
            (200, said([None, [-1.0, 8, None]], [None, None])),
            Outcome.INVALID,
            "lack the prompt's own tokens",
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

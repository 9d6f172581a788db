"""Asks an instance for log-probabilities and for greedy answers, one request at a time.

One at a time, because how requests are batched changes how an engine rounds: asked in this way, the same weights on the
same engine give the same numbers to the last bit, and a variant has no divergence from itself.
"""

import http.client
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bitbench.core.base import Json
from bitbench.core.ports import Endpoint
from bitbench.core.quality_record import SCORE_COLUMNS, Answer, Prompt
from bitbench.core.trial import Failure, Outcome

if TYPE_CHECKING:
    import pyarrow as pa

OnStep = Callable[[int], None]
Place = tuple[int, dict[int, float]]  # position in the window; token -> log-probability there
_SHOWN = 300  # characters of a server's message that go into a cause


class AskingFailed(Exception):
    """The endpoint did not answer as it should; becomes the outcome of the measurement."""

    def __init__(self, outcome: Outcome, cause: str) -> None:
        super().__init__(cause)
        self.failure = Failure(outcome=outcome, cause=cause)


class Asker:
    """One connection to an endpoint, opened again where the server closes it."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self._endpoint = endpoint
        parts = urlsplit(endpoint.url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)

    def __enter__(self) -> "Asker":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, **fields: Json) -> Json:
        """The first choice of the completion that a request with these fields gives; raises AskingFailed."""
        body = json.dumps({"model": self._endpoint.model, "temperature": 0, **fields})
        headers = {"Content-Type": "application/json"}
        if self._endpoint.api_key:
            headers["Authorization"] = f"Bearer {self._endpoint.api_key}"
        try:
            self._connection.request("POST", "/v1/completions", body, headers)
            response = self._connection.getresponse()
            content = response.read()
        except TimeoutError as error:
            raise AskingFailed(Outcome.TIMEOUT, "It gave no answer within the study's limit for a request.") from error
        except (OSError, http.client.HTTPException) as error:
            raise AskingFailed(Outcome.CRASHED, f"The connection broke: {error}") from error
        if response.status != http.client.OK:
            said = content.decode(errors="replace")[:_SHOWN]
            raise AskingFailed(Outcome.INVALID, f"It answered with HTTP {response.status}: {said}")
        try:
            return json.loads(content)["choices"][0]
        except (ValueError, LookupError, TypeError) as error:
            raise AskingFailed(Outcome.INVALID, f"Its answer is not a completion: {error}") from error


def score_windows(asker: Asker, windows: Sequence[Sequence[int]], top: int, on_window: OnStep) -> "pa.Table":
    """One row per token but the first of each window, in the columns of SCORE_COLUMNS."""
    import pyarrow as pa

    columns: list[list[Json]] = [[] for _ in SCORE_COLUMNS]
    for number, window in enumerate(windows):
        on_window(number)
        for position, place in _prompt_logprobs(asker, window, top):
            ranked = sorted(place.items(), key=lambda one: -one[1])[:top]
            token = window[position]
            row = (number, position, token, place[token], [one for one, _ in ranked], [value for _, value in ranked])
            for column, value in zip(columns, row, strict=True):
                column.append(value)
    types = {"int32": pa.int32(), "float32": pa.float32()}
    types |= {f"list<{name}>": pa.list_(kind) for name, kind in types.items()}
    schema = pa.schema([(column.name, types[column.arrow_type]) for column in SCORE_COLUMNS])
    return pa.Table.from_arrays(
        [pa.array(values, kind.type) for values, kind in zip(columns, schema, strict=True)], schema=schema
    )


def _prompt_logprobs(asker: Asker, window: Sequence[int], top: int) -> list[Place]:
    """For each place but the first: the likeliest tokens and the one that stands there, with log-probabilities."""
    choice = asker.ask(prompt=list(window), max_tokens=1, prompt_logprobs=top)
    places = choice.get("prompt_logprobs")
    if not isinstance(places, list) or len(places) != len(window):
        raise AskingFailed(
            Outcome.UNSUPPORTED, "Its answer holds no `prompt_logprobs` of each token: the server does not know them."
        )
    known = [{int(token): float(said["logprob"]) for token, said in place.items()} for place in places[1:]]
    if any(token not in place for token, place in zip(window[1:], known, strict=True)):
        raise AskingFailed(Outcome.INVALID, "`prompt_logprobs` do not hold the prompt's own tokens.")
    return list(enumerate(known, start=1))


def ask_answers(
    asker: Asker, prompts: Sequence[Prompt], length: int, end_tokens: Sequence[int], on_prompt: OnStep
) -> tuple[Answer, ...]:
    answers = []
    for number, prompt in enumerate(prompts):
        on_prompt(number)
        said = asker.ask(prompt=list(prompt.tokens), max_tokens=length, return_token_ids=True)
        tokens, text = said.get("token_ids"), said.get("text")
        if not isinstance(tokens, list) or not isinstance(text, str):
            raise AskingFailed(Outcome.INVALID, "Its answer holds no `token_ids`, so answers cannot be compared.")
        end = next((place for place, token in enumerate(tokens) if token in end_tokens), len(tokens))
        answers.append(Answer(prompt=prompt.text, text=text, tokens=tuple(tokens[:end])))
    return tuple(answers)

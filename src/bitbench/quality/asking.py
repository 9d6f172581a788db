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
from bitbench.core.quality import Scoring
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

    def __init__(self, endpoint: Endpoint, scoring: Scoring, timeout_s: float) -> None:
        self._endpoint = endpoint
        self.scoring = scoring
        parts = urlsplit(endpoint.url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)

    def __enter__(self) -> "Asker":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def complete(self, **fields: Json) -> Json:
        """The first choice of an OpenAI-style completion."""
        answer = self.ask("/v1/completions", **fields)
        try:
            return answer["choices"][0]
        except (LookupError, TypeError) as error:
            raise AskingFailed(Outcome.INVALID, f"Its answer is not a completion: {error}") from error

    def ask(self, path: str, **fields: Json) -> Json:
        """The answer to a request with these fields; raises AskingFailed."""
        body = json.dumps({"model": self._endpoint.model, "temperature": 0, **fields})
        headers = {"Content-Type": "application/json"}
        if self._endpoint.api_key:
            headers["Authorization"] = f"Bearer {self._endpoint.api_key}"
        try:
            self._connection.request("POST", path, body, headers)
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
            return json.loads(content)
        except ValueError as error:
            raise AskingFailed(Outcome.INVALID, f"Its answer is not JSON: {error}") from error


def score_windows(asker: Asker, windows: Sequence[Sequence[int]], top: int, on_window: OnStep) -> "pa.Table":
    """One row per token but the first of each window, in the columns of SCORE_COLUMNS."""
    import pyarrow as pa

    score = {Scoring.PROMPT_LOGPROBS: _prompt_logprobs, Scoring.FORCED_TOKENS: _forced_tokens}[asker.scoring]
    columns: list[list[Json]] = [[] for _ in SCORE_COLUMNS]
    for number, window in enumerate(windows):
        on_window(number)
        for position, place in score(asker, window, top):
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
    choice = asker.complete(prompt=list(window), max_tokens=1, prompt_logprobs=top)
    places = choice.get("prompt_logprobs")
    if not isinstance(places, list) or len(places) != len(window):
        raise AskingFailed(
            Outcome.UNSUPPORTED, "Its answer holds no `prompt_logprobs` of each token: the server does not know them."
        )
    known = [{int(token): float(said["logprob"]) for token, said in place.items()} for place in places[1:]]
    if any(token not in place for token, place in zip(window[1:], known, strict=True)):
        raise AskingFailed(Outcome.INVALID, "`prompt_logprobs` do not hold the prompt's own tokens.")
    return list(enumerate(known, start=1))


def _forced_tokens(asker: Asker, window: Sequence[int], top: int) -> list[Place]:
    """The same from llama.cpp's server, which says nothing about a prompt, but for each token that it writes how likely
    it and others were before any sampling rule: so a grammar leaves it no choice but the window's own tokens.

    It says nothing about a token that ends within a character; such places are missing, for every variant the same.
    """
    grammar = "root ::= " + " ".join(f"<[{token}]>" for token in window[1:])
    answer = asker.ask(
        "/completion",
        prompt=[window[0]],
        n_predict=len(window) - 1,
        n_probs=top,
        grammar=grammar,
        return_tokens=True,
        cache_prompt=False,
    )
    if answer.get("tokens") != list(window[1:]):
        raise AskingFailed(Outcome.UNSUPPORTED, "It did not write the tokens that a grammar of token ids left it.")
    places: list[Place] = []
    position = 0
    for said in answer["completion_probabilities"]:
        position = window.index(said["id"], position + 1)
        likely = {one["id"]: float(one["logprob"]) for one in said["top_logprobs"]}
        places.append((position, {**likely, said["id"]: float(said["logprob"])}))
    return places


def ask_answers(
    asker: Asker, prompts: Sequence[Prompt], length: int, end_tokens: Sequence[int], on_prompt: OnStep
) -> tuple[Answer, ...]:
    answers = []
    for number, prompt in enumerate(prompts):
        on_prompt(number)
        if asker.scoring is Scoring.FORCED_TOKENS:
            said = asker.ask("/completion", prompt=list(prompt.tokens), n_predict=length, return_tokens=True)
            tokens, text = said.get("tokens"), said.get("content")
        else:
            said = asker.complete(prompt=list(prompt.tokens), max_tokens=length, return_token_ids=True)
            tokens, text = said.get("token_ids"), said.get("text")
        if not isinstance(tokens, list) or not isinstance(text, str):
            raise AskingFailed(Outcome.INVALID, "Its answer holds no `token_ids`, so answers cannot be compared.")
        end = next((place for place, token in enumerate(tokens) if token in end_tokens), len(tokens))
        answers.append(Answer(prompt=prompt.text, text=text, tokens=tuple(tokens[:end])))
    return tuple(answers)

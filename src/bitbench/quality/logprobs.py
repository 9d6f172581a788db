"""The ways to get log-probabilities and greedy answers from an instance: vLLM's fields, SGLang's
/generate, and llama.cpp token by token.
"""

import json
import math
from collections.abc import Sequence
from http import HTTPStatus
from itertools import takewhile

from bitbench.ports import Endpoint
from bitbench.records.trial import Failure, Outcome
from bitbench.study.base import Json
from bitbench.util import machine_faults
from bitbench.util.http.connection import BadAnswer, PlainConnection
from bitbench.util.http.response import LOGPROB_BYTES
from bitbench.util.text import escape_surrogates, quote


class AskingFailed(Exception):
    """A wrong answer of the endpoint, or none. It becomes the outcome of the measurement."""

    def __init__(self, outcome: Outcome, cause: str, status: int = HTTPStatus.OK) -> None:
        super().__init__(cause)
        self.failure = Failure(outcome=outcome, cause=cause)
        self.status = status  # the HTTP status


class InstanceConnection:
    """A connection to an instance, which opens again after the server has closed it."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self._endpoint = endpoint
        self._connection = PlainConnection(
            endpoint.url, limit_s=timeout_s, limit_bytes=LOGPROB_BYTES
        )

    def __enter__(self) -> "InstanceConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, path: str, **fields: Json) -> dict[str, Json]:
        """Send a greedy request with these fields and return the answer. Raise AskingFailed."""
        key = self._endpoint.api_key
        body = json.dumps({"model": self._endpoint.model, "temperature": 0, **fields}).encode()
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        try:
            status, _, content = self._connection.ask("POST", path, headers, body)
        except TimeoutError as error:
            raise AskingFailed(
                Outcome.TIMEOUT, "It did not answer within the study's limits.request."
            ) from error
        except OSError as error:
            if machine_faults.explain_machine_lack(error) is not None:
                raise  # this machine's fault, not the instance's
            raise AskingFailed(
                Outcome.CRASHED, f"The connection broke: {quote(str(error), key)}"
            ) from error
        except BadAnswer as problem:
            raise AskingFailed(
                Outcome.INVALID, f"Its answer is unusable: {problem.fault.show(key)}"
            ) from problem
        if status != HTTPStatus.OK:
            raise AskingFailed(
                Outcome.INVALID, f"It answered with HTTP {status}: {quote(content, key)}", status
            )
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise AskingFailed(Outcome.INVALID, f"Its answer is not JSON: {error}") from error
        if not isinstance(answer, dict):
            raise AskingFailed(
                Outcome.INVALID, "Its answer is not a completion, but another kind of JSON."
            )
        return answer


class PromptLogprobs:
    """The `quality.measure.Asker` of vLLM and of our transformers server."""

    def __init__(self, connection: InstanceConnection) -> None:
        self._connection = connection

    def score(self, window: Sequence[int], top: int) -> list[dict[int, float]]:
        choice = self._complete(prompt=list(window), max_tokens=1, prompt_logprobs=top)
        positions = choice.get("prompt_logprobs")
        if not isinstance(positions, list) or len(positions) != len(window):
            raise AskingFailed(
                Outcome.UNSUPPORTED,
                "Its answer lacks `prompt_logprobs` for each token: the server does not support "
                "them.",
            )
        scores = [_parse_position(position) for position in positions[1:]]
        if not _contain_window(scores, window):
            raise AskingFailed(Outcome.INVALID, "`prompt_logprobs` lack the prompt's own tokens.")
        return scores

    def answer(
        self, prompt: Sequence[int], length: int, end_tokens: Sequence[int], stop: str | None = None
    ) -> tuple[list[int], str]:
        ending: dict[str, Json] = {}
        if stop is not None:
            ending = {"stop": [stop]}
        choice = self._complete(
            prompt=list(prompt), max_tokens=length, return_token_ids=True, **ending
        )
        tokens = choice.get("token_ids")
        text = choice.get("text")
        if not isinstance(tokens, list) or not isinstance(text, str):
            raise AskingFailed(
                Outcome.INVALID, "Its answer lacks `token_ids`, so answers cannot be compared."
            )
        if stop is not None:
            text = text.partition(stop)[0]
        answer = list(takewhile(lambda token: token not in end_tokens, tokens))
        return answer, escape_surrogates(text)

    def _complete(self, **fields: Json) -> Json:
        answer = self._connection.ask("/v1/completions", **fields)
        try:
            return answer["choices"][0]
        except (LookupError, TypeError) as error:
            raise AskingFailed(
                Outcome.INVALID, f"Its answer is not a completion: {error}"
            ) from error


def _parse_position(position: dict[str, Json]) -> dict[int, float]:
    """Return the log-probabilities at a position by token id."""
    return {int(token): _parse_logprob(entry["logprob"]) for token, entry in position.items()}


def _contain_window(scores: Sequence[dict[int, float]], window: Sequence[int]) -> bool:
    """Return True if the scores contain each token of the window but the first."""
    return all(token in score for token, score in zip(window[1:], scores, strict=True))


def _parse_logprob(logprob: float | None) -> float:
    """Return NaN for null, because JSON has no NaN."""
    if logprob is None:
        return math.nan
    return float(logprob)


class InputLogprobs(PromptLogprobs):
    """The `quality.measure.Asker` of SGLang. It gets answers in the same way as from vLLM."""

    def score(self, window: Sequence[int], top: int) -> list[dict[int, float]]:
        answer = self._connection.ask(
            "/generate",
            input_ids=list(window),
            sampling_params={"temperature": 0, "max_new_tokens": 1, "ignore_eos": True},
            return_logprob=True,
            logprob_start_len=0,
            top_logprobs_num=top,
        )
        entries = _list_positions(answer, "input_token_logprobs")
        top_entries = _list_positions(answer, "input_top_logprobs")
        if not len(entries) == len(top_entries) == len(window):
            raise AskingFailed(
                Outcome.UNSUPPORTED,
                "Its answer lacks `input_token_logprobs` for each token: the server does not "
                "support them.",
            )
        scores = []
        try:
            for entry, others in zip(entries[1:], top_entries[1:], strict=True):
                scores.append(_parse_entries([entry, *(others or ())]))
        except (LookupError, TypeError, ValueError) as error:
            raise AskingFailed(
                Outcome.INVALID, f"`input_token_logprobs` are not as expected: {error}"
            ) from error
        if not _contain_window(scores, window):
            raise AskingFailed(
                Outcome.INVALID, "`input_token_logprobs` lack the prompt's own tokens."
            )
        return scores


def _list_positions(answer: dict[str, Json], name: str) -> list[Json]:
    """Return the list with this name in an answer of SGLang, or an empty list."""
    info = answer.get("meta_info")
    positions = info.get(name) if isinstance(info, dict) else None
    if not isinstance(positions, list):
        return []
    return positions


def _parse_entries(entries: Sequence[Json]) -> dict[int, float]:
    """Return log-probabilities by token. An entry is [log-probability, token, text or null]."""
    return {int(entry[1]): _parse_logprob(entry[0]) for entry in entries}


# The cache is kept in slots. Each request must use the slot that contains its beginning.
_SLOT = 0
_SURE = 1e6  # bias of a logit, whose size is some tens, so that no other token can be generated
_LETTER = "a"  # a token in every vocabulary
# Numbers of likeliest tokens. The server limits them to its vocabulary.
_MORE = 1024
_ALL = 10_000_000
# The server computes probabilities in 32 bits and returns the lowest possible number for one that
# vanishes, which is at most this.
_VANISHED = math.log(2.0**-149)


class NextToken:
    """The `quality.measure.Asker` of llama.cpp, which only scores the next token.

    So it requests one token after each beginning of a window. The server caches the previous
    beginning (`cache_prompt`), so each position costs one step of decoding. A step is the same
    whatever ran before it. The probabilities come from the model's own logits. The bias decides
    the generated token but does not change them.
    """

    def __init__(self, connection: InstanceConnection) -> None:
        self._connection = connection

    def score(self, window: Sequence[int], top: int) -> list[dict[int, float]]:
        scores = []
        for position in range(1, len(window)):
            scores.append(self._place(window[:position], window[position], top))
        return scores

    def answer(
        self, prompt: Sequence[int], length: int, end_tokens: Sequence[int], stop: str | None = None
    ) -> tuple[list[int], str]:
        """Return an answer token by token.

        In one request, the server would fail on an answer with a part of a character.
        """
        tokens: list[int] = []
        text = b""
        ending = None
        if stop is not None:
            ending = stop.encode()
        while len(tokens) < length and (ending is None or ending not in text):
            likeliest = self._ask_next([*prompt, *tokens], _LETTER, 1)["top_logprobs"][0]
            if likeliest["id"] in end_tokens:
                break
            tokens.append(likeliest["id"])
            text += bytes(likeliest["bytes"])
        if ending is not None:
            text = text.partition(ending)[0]
        return tokens, text.decode(errors="replace")

    def _place(self, before: Sequence[int], token: int, top: int) -> dict[int, float]:
        """Return the log-probabilities of the likeliest tokens and of the window's token.

        A token that is only a part of a character cannot be generated alone. Search for it among
        more of the likeliest tokens.
        """
        try:
            position = self._ask_next(before, token, top)
            return _parse_logprobs([*position["top_logprobs"], position])
        except AskingFailed as failed:
            is_unsupported = failed.failure.outcome is Outcome.UNSUPPORTED
            if failed.status != HTTPStatus.INTERNAL_SERVER_ERROR and not is_unsupported:
                raise
        for count in (_MORE, _ALL):
            logprobs = _parse_logprobs(self._ask_next(before, _LETTER, count)["top_logprobs"])
            if token in logprobs:
                return logprobs
        raise AskingFailed(
            Outcome.INVALID,
            f"It returned no log-probability for token {token}; is its vocabulary different?",
        )

    def _ask_next(self, before: Sequence[int], forced: int | str, count: int) -> Json:
        """Return the probabilities after these tokens, while the server generates `forced`."""
        answer = self._connection.ask(
            "/completion",
            prompt=list(before),
            n_predict=1,
            n_probs=count,
            logit_bias=[[forced, _SURE]],
            id_slot=_SLOT,
            cache_prompt=True,
            response_fields=["completion_probabilities"],
        )
        positions = answer.get("completion_probabilities")
        if not isinstance(positions, list) or len(positions) != 1:
            positions = [{}]
        if not positions[0].get("top_logprobs"):
            raise AskingFailed(
                Outcome.UNSUPPORTED,
                "Its answer lacks `completion_probabilities`: the server does not support them.",
            )
        if isinstance(forced, int) and positions[0].get("id") != forced:
            raise AskingFailed(
                Outcome.UNSUPPORTED, "It did not generate the token that `logit_bias` forces."
            )
        return positions[0]


def _parse_logprobs(entries: Sequence[Json]) -> dict[int, float]:
    """Return log-probabilities by token, NaN for null."""
    logprobs = {}
    for entry in entries:
        logprob = math.nan
        if entry["logprob"] is not None:
            logprob = max(float(entry["logprob"]), _VANISHED)
        logprobs[int(entry["id"])] = logprob
    return logprobs

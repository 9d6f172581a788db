"""The ways to ask an instance for log-probabilities and greedy answers: vLLM's fields, SGLang's /generate, and
llama.cpp token by token."""

import json
import math
from collections.abc import Sequence
from http import HTTPStatus

from bitbench.ports import Endpoint
from bitbench.records.trial import Failure, Outcome
from bitbench.study.base import Json
from bitbench.util import machine_faults
from bitbench.util.http.connection import BadAnswer, PlainConnection
from bitbench.util.http.response import LOGPROB_BYTES
from bitbench.util.text import encodable, quote


class AskingFailed(Exception):
    """The endpoint did not answer as it should; becomes the outcome of the measurement."""

    def __init__(self, outcome: Outcome, cause: str, status: int = HTTPStatus.OK) -> None:
        super().__init__(cause)
        self.failure = Failure(outcome=outcome, cause=cause)
        self.status = status  # of HTTP


class InstanceConnection:
    """Opened again where the server closes it."""

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
        """The answer to a request with these fields, greedy; raises AskingFailed."""
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
    """`quality.measure.Asker` of vLLM and of our transformers server."""

    def __init__(self, connection: InstanceConnection) -> None:
        self._connection = connection

    def score(self, window: Sequence[int], top: int) -> list[dict[int, float]]:
        choice = self._complete(prompt=list(window), max_tokens=1, prompt_logprobs=top)
        places = choice.get("prompt_logprobs")
        if not isinstance(places, list) or len(places) != len(window):
            raise AskingFailed(
                Outcome.UNSUPPORTED,
                "Its answer lacks `prompt_logprobs` for each token: the server does not support them.",
            )
        known = [
            {int(token): _logprob_number(said["logprob"]) for token, said in place.items()}
            for place in places[1:]
        ]
        if any(token not in place for token, place in zip(window[1:], known, strict=True)):
            raise AskingFailed(Outcome.INVALID, "`prompt_logprobs` lack the prompt's own tokens.")
        return known

    def answer(
        self, prompt: Sequence[int], length: int, end_tokens: Sequence[int], stop: str | None = None
    ) -> tuple[list[int], str]:
        ending: dict[str, Json] = {} if stop is None else {"stop": [stop]}
        said = self._complete(
            prompt=list(prompt), max_tokens=length, return_token_ids=True, **ending
        )
        tokens, text = said.get("token_ids"), said.get("text")
        if not isinstance(tokens, list) or not isinstance(text, str):
            raise AskingFailed(
                Outcome.INVALID, "Its answer lacks `token_ids`, so answers cannot be compared."
            )
        end = next(
            (place for place, token in enumerate(tokens) if token in end_tokens), len(tokens)
        )
        return tokens[:end], encodable(text if stop is None else text.partition(stop)[0])

    def _complete(self, **fields: Json) -> Json:
        answer = self._connection.ask("/v1/completions", **fields)
        try:
            return answer["choices"][0]
        except (LookupError, TypeError) as error:
            raise AskingFailed(
                Outcome.INVALID, f"Its answer is not a completion: {error}"
            ) from error


def _logprob_number(logprob: float | None) -> float:
    """JSON has no word for what is no number."""
    return math.nan if logprob is None else float(logprob)


class InputLogprobs(PromptLogprobs):
    """`quality.measure.Asker` of SGLang. Answers are asked for as vLLM's are."""

    def score(self, window: Sequence[int], top: int) -> list[dict[int, float]]:
        said = self._connection.ask(
            "/generate",
            input_ids=list(window),
            sampling_params={"temperature": 0, "max_new_tokens": 1, "ignore_eos": True},
            return_logprob=True,
            logprob_start_len=0,
            top_logprobs_num=top,
        )
        own, likeliest = _places(said, "input_token_logprobs"), _places(said, "input_top_logprobs")
        if not len(own) == len(likeliest) == len(window):
            raise AskingFailed(
                Outcome.UNSUPPORTED,
                "Its answer lacks `input_token_logprobs` for each token: the server does not support them.",
            )
        try:
            known = [
                _known([at, *(among or ())])
                for at, among in zip(own[1:], likeliest[1:], strict=True)
            ]
        except (LookupError, TypeError, ValueError) as error:
            raise AskingFailed(
                Outcome.INVALID, f"`input_token_logprobs` are not as expected: {error}"
            ) from error
        if any(token not in place for token, place in zip(window[1:], known, strict=True)):
            raise AskingFailed(
                Outcome.INVALID, "`input_token_logprobs` lack the prompt's own tokens."
            )
        return known


def _places(said: dict[str, Json], name: str) -> list[Json]:
    facts = said.get("meta_info")
    places = facts.get(name) if isinstance(facts, dict) else None
    return places if isinstance(places, list) else []


def _known(said: Sequence[Json]) -> dict[int, float]:
    """Each as [log-probability, token, text or null]."""
    return {int(entry[1]): _logprob_number(entry[0]) for entry in said}


_SLOT = (
    0  # its cache is kept in slots; each request has to come to the one that knows the beginning
)
_SURE = 1e6  # added to a logit, whose size is some tens: nothing else can be written
_LETTER = "a"  # text in every vocabulary
_MORE, _ALL = 1024, 10_000_000  # likeliest tokens; the server cuts the number to its vocabulary
# It computes probabilities in 32 bits and tells the lowest number there is for one that vanishes. It is not above this.
_VANISHED = math.log(2.0**-149)


class NextToken:
    """`quality.measure.Asker` of llama.cpp, whose server says nothing about a prompt, but how likely each token was
    that it could write next.

    So it is asked for one token after each beginning of a window. It keeps what it computed for the beginning before
    (`cache_prompt`), so each place costs one step of decoding, and a step is the same whatever ran before it. The
    probabilities that it tells are of the model's own logits: a bias decides what it writes, not what it tells.
    """

    def __init__(self, connection: InstanceConnection) -> None:
        self._connection = connection

    def score(self, window: Sequence[int], top: int) -> list[dict[int, float]]:
        return [
            self._place(window[:position], window[position], top)
            for position in range(1, len(window))
        ]

    def answer(
        self, prompt: Sequence[int], length: int, end_tokens: Sequence[int], stop: str | None = None
    ) -> tuple[list[int], str]:
        """Token by token: in one request an answer with half a character would be an error of the server."""
        tokens: list[int] = []
        text = b""
        ending = None if stop is None else stop.encode()
        while len(tokens) < length and (ending is None or ending not in text):
            likeliest = self._after([*prompt, *tokens], _LETTER, 1)["top_logprobs"][0]
            if likeliest["id"] in end_tokens:
                break
            tokens.append(likeliest["id"])
            text += bytes(likeliest["bytes"])
        return tokens, (text if ending is None else text.partition(ending)[0]).decode(
            errors="replace"
        )

    def _place(self, before: Sequence[int], token: int, top: int) -> dict[int, float]:
        """The likeliest tokens and the one that stands there, with log-probabilities.

        A token that is only part of a character cannot be written alone, and is looked for among more of the likeliest.
        """
        try:
            said = self._after(before, token, top)
            return _logprobs([*said["top_logprobs"], said])
        except AskingFailed as failed:
            if (
                failed.status != HTTPStatus.INTERNAL_SERVER_ERROR
                and failed.failure.outcome is not Outcome.UNSUPPORTED
            ):
                raise
        for count in (_MORE, _ALL):
            found = _logprobs(self._after(before, _LETTER, count)["top_logprobs"])
            if token in found:
                return found
        raise AskingFailed(
            Outcome.INVALID,
            f"It returned no log-probability for token {token}; is its vocabulary different?",
        )

    def _after(self, before: Sequence[int], written: int | str, count: int) -> Json:
        """What it tells about the place after these tokens while it writes what it is made to."""
        said = self._connection.ask(
            "/completion",
            prompt=list(before),
            n_predict=1,
            n_probs=count,
            logit_bias=[[written, _SURE]],
            id_slot=_SLOT,
            cache_prompt=True,
            response_fields=["completion_probabilities"],
        )
        places = said.get("completion_probabilities")
        if not isinstance(places, list) or len(places) != 1 or not places[0].get("top_logprobs"):
            raise AskingFailed(
                Outcome.UNSUPPORTED,
                "Its answer lacks `completion_probabilities`: the server does not support them.",
            )
        if isinstance(written, int) and places[0].get("id") != written:
            raise AskingFailed(
                Outcome.UNSUPPORTED, "It did not generate the token that `logit_bias` forces."
            )
        return places[0]


def _logprobs(said: Sequence[Json]) -> dict[int, float]:
    """What is no number is null in JSON."""
    return {
        int(entry["id"]): math.nan
        if entry["logprob"] is None
        else max(float(entry["logprob"]), _VANISHED)
        for entry in said
    }

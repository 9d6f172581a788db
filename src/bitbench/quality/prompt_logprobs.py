"""Servers that know vLLM's fields `prompt_logprobs` and `return_token_ids`: a window is one request."""

import math
from collections.abc import Sequence

from bitbench.quality.wire import AskingFailed, InstanceConnection
from bitbench.records.trial import Outcome
from bitbench.study.base import Json
from bitbench.util.quotation import encodable


class PromptLogprobs:
    """`quality.asking.Asker` of vLLM and of our transformers server."""

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
        known = [{int(token): number(said["logprob"]) for token, said in place.items()} for place in places[1:]]
        if any(token not in place for token, place in zip(window[1:], known, strict=True)):
            raise AskingFailed(Outcome.INVALID, "`prompt_logprobs` lack the prompt's own tokens.")
        return known

    def answer(
        self, prompt: Sequence[int], length: int, end_tokens: Sequence[int], stop: str | None = None
    ) -> tuple[list[int], str]:
        ending: dict[str, Json] = {} if stop is None else {"stop": [stop]}
        said = self._complete(prompt=list(prompt), max_tokens=length, return_token_ids=True, **ending)
        tokens, text = said.get("token_ids"), said.get("text")
        if not isinstance(tokens, list) or not isinstance(text, str):
            raise AskingFailed(Outcome.INVALID, "Its answer lacks `token_ids`, so answers cannot be compared.")
        end = next((place for place, token in enumerate(tokens) if token in end_tokens), len(tokens))
        return tokens[:end], encodable(text if stop is None else text.partition(stop)[0])

    def _complete(self, **fields: Json) -> Json:
        answer = self._connection.ask("/v1/completions", **fields)
        try:
            return answer["choices"][0]
        except (LookupError, TypeError) as error:
            raise AskingFailed(Outcome.INVALID, f"Its answer is not a completion: {error}") from error


def number(logprob: float | None) -> float:
    """JSON has no word for what is no number."""
    return math.nan if logprob is None else float(logprob)

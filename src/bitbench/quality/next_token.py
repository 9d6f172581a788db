"""llama.cpp's server, which says nothing about a prompt, but how likely each token was that it could write next.

So it is asked for one token after each beginning of a window. It keeps what it computed for the beginning before
(`cache_prompt`), so each place costs one step of decoding, and a step is the same whatever ran before it. The
probabilities that it tells are of the model's own logits: a bias decides what it writes, not what it tells.
"""

import math
from collections.abc import Sequence
from http import HTTPStatus

from bitbench.quality.wire import AskingFailed, InstanceConnection
from bitbench.records.trial import Outcome
from bitbench.study.base import Json

_SLOT = 0  # its cache is kept in slots; each request has to come to the one that knows the beginning
_SURE = 1e6  # added to a logit, whose size is some tens: nothing else can be written
_LETTER = "a"  # text in every vocabulary
_MORE, _ALL = 1024, 10_000_000  # likeliest tokens; the server cuts the number to its vocabulary
# It computes probabilities in 32 bits and tells the lowest number there is for one that vanishes. It is not above this.
_VANISHED = math.log(2.0**-149)


class NextToken:
    """`quality.asking.Asker` of llama.cpp."""

    def __init__(self, connection: InstanceConnection) -> None:
        self._connection = connection

    def score(self, window: Sequence[int], top: int) -> list[dict[int, float]]:
        return [self._place(window[:position], window[position], top) for position in range(1, len(window))]

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
        return tokens, (text if ending is None else text.partition(ending)[0]).decode(errors="replace")

    def _place(self, before: Sequence[int], token: int, top: int) -> dict[int, float]:
        """The likeliest tokens and the one that stands there, with log-probabilities.

        A token that is only part of a character cannot be written alone, and is looked for among more of the likeliest.
        """
        try:
            said = self._after(before, token, top)
            return _logprobs([*said["top_logprobs"], said])
        except AskingFailed as failed:
            if failed.status != HTTPStatus.INTERNAL_SERVER_ERROR and failed.failure.outcome is not Outcome.UNSUPPORTED:
                raise
        for count in (_MORE, _ALL):
            found = _logprobs(self._after(before, _LETTER, count)["top_logprobs"])
            if token in found:
                return found
        raise AskingFailed(
            Outcome.INVALID, f"It returned no log-probability for token {token}; is its vocabulary different?"
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
                Outcome.UNSUPPORTED, "Its answer lacks `completion_probabilities`: the server does not support them."
            )
        if isinstance(written, int) and places[0].get("id") != written:
            raise AskingFailed(Outcome.UNSUPPORTED, "It did not generate the token that `logit_bias` forces.")
        return places[0]


def _logprobs(said: Sequence[Json]) -> dict[int, float]:
    """What is no number is null in JSON."""
    return {
        int(entry["id"]): math.nan if entry["logprob"] is None else max(float(entry["logprob"]), _VANISHED)
        for entry in said
    }

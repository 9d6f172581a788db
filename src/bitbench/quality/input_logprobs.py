"""SGLang's own `/generate`, which returns log-probabilities of its input: a window is one request."""

from collections.abc import Sequence

from bitbench.quality.prompt_logprobs import PromptLogprobs, number
from bitbench.quality.wire import AskingFailed
from bitbench.records.trial import Outcome
from bitbench.study.base import Json


class InputLogprobs(PromptLogprobs):
    """`quality.asking.Asker` of SGLang. Answers are asked for as vLLM's are."""

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
            known = [_known([at, *(among or ())]) for at, among in zip(own[1:], likeliest[1:], strict=True)]
        except (LookupError, TypeError, ValueError) as error:
            raise AskingFailed(Outcome.INVALID, f"`input_token_logprobs` are not as expected: {error}") from error
        if any(token not in place for token, place in zip(window[1:], known, strict=True)):
            raise AskingFailed(Outcome.INVALID, "`input_token_logprobs` lack the prompt's own tokens.")
        return known


def _places(said: dict[str, Json], name: str) -> list[Json]:
    facts = said.get("meta_info")
    places = facts.get(name) if isinstance(facts, dict) else None
    return places if isinstance(places, list) else []


def _known(said: Sequence[Json]) -> dict[int, float]:
    """Each as [log-probability, token, text or null]."""
    return {int(entry[1]): number(entry[0]) for entry in said}

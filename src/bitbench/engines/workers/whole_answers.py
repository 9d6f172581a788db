"""Requests that want one whole answer and no stream: log-probabilities of a prompt, or a greedy text.

A part of the servers that lie beside it, loaded by path in their environments; imports nothing of ours. Speaks what
vLLM's server does: `prompt_logprobs: K` (each prompt token and the K likeliest at its place), the older `echo` with
`logprobs: K`, which lm-eval asks for, and `stop`, `ignore_eos` and `return_token_ids` for a text.
"""

import threading
from typing import Any, Protocol

Place = dict[int, float]  # token -> log-probability: the K likeliest first, then the one that stands there


class WholeModel(Protocol):
    """What answers are made with."""

    def score(self, prompt: list[int], top: int) -> list[Place]:
        """For each place from the second on, and for the one after the prompt (the likeliest token stands there)."""

    def write(self, prompt: list[int], max_tokens: int, stop: list[str], *, ignore_eos: bool) -> list[int]:
        """Greedy tokens; where a text of `stop` appears they may end."""

    def text_of(self, tokens: list[int], *, skip_special: bool) -> str: ...


class WholeJob:
    """One request; the thread that computes fills `answer`."""

    batch_size = 1
    count = 0
    is_broken = False

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body
        self.prompts = prompts_of(body)
        self.done = threading.Event()
        self.error: str | None = None
        self.answer: dict[str, Any] | None = None


def prompts_of(body: dict[str, Any]) -> list[list[int]]:
    """One prompt of token ids, or a list of such."""
    prompt = body["prompt"]
    return prompt if isinstance(prompt[0], list) else [prompt]


def fault_of(body: Any, context_tokens: int | None) -> str | None:
    """What is wrong with a request, or None."""
    prompt, count = body.get("prompt"), body.get("max_tokens")
    if not (isinstance(prompt, list) and prompt):
        return "prompt must be a list of token ids"
    for tokens in prompts_of(body):
        if not (isinstance(tokens, list) and tokens and all(type(token) is int for token in tokens)):
            return "prompt must be a list of token ids, or a list of such lists"
        if type(count) is int and context_tokens is not None and len(tokens) + count > context_tokens:
            return f"{len(tokens)} tokens in and {count} out are more than the model's context of {context_tokens}"
    if not (type(count) is int and count > 0):
        return "max_tokens must be a positive number"
    return _unknown_wish(body)


def _unknown_wish(body: dict[str, Any]) -> str | None:
    if body.get("temperature", 0) != 0:
        return "this server decodes greedily: set temperature to 0"
    if wanted_top(body) is not None and body["max_tokens"] != 1:
        return "log-probabilities of a prompt are given with max_tokens 1 only"
    return None


def wanted_top(body: dict[str, Any]) -> int | None:
    """How many likely tokens are wanted at each place of the prompt; None: none, not even the prompt's own."""
    if body.get("prompt_logprobs") is not None:
        return int(body["prompt_logprobs"])
    return int(body["logprobs"]) if body.get("echo") and body.get("logprobs") is not None else None


def answer(job: WholeJob, model: WholeModel) -> None:
    """Computes every choice of a request, one after the other: a batch would be padded, and round differently."""
    top = wanted_top(job.body)
    choices = []
    for index, prompt in enumerate(job.prompts):
        if top is not None:
            choice = _scored(job.body, prompt, model.score(prompt, top), model)
        else:
            choice = _written(job.body, prompt, model)
        choices.append({"index": index, **choice})
    usage = {"prompt_tokens": sum(map(len, job.prompts)), "completion_tokens": sum(map(_length, choices))}
    job.answer = {"object": "text_completion", "model": job.body.get("model", ""), "choices": choices, "usage": usage}


def _scored(body: dict[str, Any], prompt: list[int], places: list[Place], model: WholeModel) -> dict[str, Any]:
    following = [*prompt[1:], max(places[-1], key=places[-1].__getitem__)]
    if body.get("prompt_logprobs") is not None:
        shown = [{str(token): {"logprob": value} for token, value in place.items()} for place in places[:-1]]
        return {"text": "", "finish_reason": "length", "token_ids": following[-1:], "prompt_logprobs": [None, *shown]}
    words = [f"token_id:{token}" for token in [prompt[0], *following]]
    return {
        "text": model.text_of([prompt[0], *following], skip_special=False),
        "finish_reason": "length",
        "token_ids": following[-1:],
        "logprobs": {
            "tokens": words,
            "token_logprobs": [None, *(place[token] for place, token in zip(places, following, strict=True))],
            "top_logprobs": [
                None,
                *({f"token_id:{candidate}": place[candidate] for candidate in place} for place in places),
            ],
        },
    }


def _written(body: dict[str, Any], prompt: list[int], model: WholeModel) -> dict[str, Any]:
    stop = body.get("stop") or []
    stop = [stop] if isinstance(stop, str) else [word for word in stop if word]
    tokens = model.write(prompt, body["max_tokens"], stop, ignore_eos=bool(body.get("ignore_eos")))
    text = model.text_of(tokens, skip_special=True)
    ends = [place for word in stop if (place := text.find(word)) >= 0]
    text = text[: min(ends)] if ends else text
    reason = "length" if len(tokens) == body["max_tokens"] and not ends else "stop"
    return {"text": text, "finish_reason": reason, "token_ids": tokens}


def _length(choice: dict[str, Any]) -> int:
    return len(choice["token_ids"])

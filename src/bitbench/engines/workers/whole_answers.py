"""Requests that want one whole answer and no stream: log-probabilities of a prompt, or a greedy text.

A part of `transformers_server.py`, loaded by path in its environment; imports nothing of ours. Speaks what vLLM's
server does: `prompt_logprobs: K` (each prompt token and the K likeliest at its place), the older `echo` with
`logprobs: K`, which lm-eval asks for, and `stop`, `ignore_eos` and `return_token_ids` for a text.
"""

import threading
from typing import Any

import torch

ROWS_AT_ONCE = 256  # of the logits, in 32 bits: a vocabulary of 128,000 then takes 131 MB

Place = dict[int, float]  # token -> log-probability: the K likeliest first, then the one that stands there


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
    for one in prompts_of(body):
        if not (isinstance(one, list) and one and all(type(token) is int for token in one)):
            return "prompt must be a list of token ids, or a list of such lists"
        if type(count) is int and context_tokens is not None and len(one) + count > context_tokens:
            return f"{len(one)} tokens in and {count} out are more than the model's context of {context_tokens}"
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


def answer(job: WholeJob, model: Any, tokenizer: Any, eos: Any) -> None:
    """Computes every choice of a request, one after the other: a batch would be padded, and round differently."""
    top = wanted_top(job.body)
    choices = []
    for index, prompt in enumerate(job.prompts):
        if top is not None:
            choice = _scored(job.body, prompt, score(model, prompt, top), tokenizer)
        else:
            choice = _written(job.body, prompt, model, tokenizer, eos)
        choices.append({"index": index, **choice})
    usage = {"prompt_tokens": sum(map(len, job.prompts)), "completion_tokens": sum(map(_length, choices))}
    job.answer = {"object": "text_completion", "model": job.body.get("model", ""), "choices": choices, "usage": usage}


def score(model: Any, prompt: list[int], top: int) -> list[Place]:
    """For each place from the second on, and for the one after the prompt (the likeliest token stands there)."""
    places: list[Place] = []
    with torch.inference_mode():
        logits = model(torch.tensor([prompt], device=model.device), use_cache=False).logits[0]
        following = torch.tensor([*prompt[1:], int(logits[-1].argmax())], device=logits.device)
        for first in range(0, len(prompt), ROWS_AT_ONCE):
            rows = logits[first : first + ROWS_AT_ONCE].float().log_softmax(-1)
            there = following[first : first + ROWS_AT_ONCE]
            best = rows.topk(min(top, rows.shape[1]))
            own = rows.gather(1, there[:, None])[:, 0]
            for ids, values, token, value in zip(
                best.indices.tolist(), best.values.tolist(), there.tolist(), own.tolist(), strict=True
            ):
                places.append({**dict(zip(ids, values, strict=True)), token: value})
    return places


def _scored(body: dict[str, Any], prompt: list[int], places: list[Place], tokenizer: Any) -> dict[str, Any]:
    following = [*prompt[1:], max(places[-1], key=places[-1].__getitem__)]
    if body.get("prompt_logprobs") is not None:
        shown = [{str(token): {"logprob": value} for token, value in place.items()} for place in places[:-1]]
        return {"text": "", "finish_reason": "length", "token_ids": following[-1:], "prompt_logprobs": [None, *shown]}
    words = [f"token_id:{token}" for token in [prompt[0], *following]]
    return {
        "text": tokenizer.decode([prompt[0], *following]),
        "finish_reason": "length",
        "token_ids": following[-1:],
        "logprobs": {
            "tokens": words,
            "token_logprobs": [None, *(place[token] for place, token in zip(places, following, strict=True))],
            "top_logprobs": [None, *({f"token_id:{one}": place[one] for one in place} for place in places)],
        },
    }


def _written(body: dict[str, Any], prompt: list[int], model: Any, tokenizer: Any, eos: Any) -> dict[str, Any]:
    stop = body.get("stop") or []
    stop = [stop] if isinstance(stop, str) else [word for word in stop if word]
    ids = torch.tensor([prompt], device=model.device)
    options: dict[str, Any] = {"stop_strings": stop, "tokenizer": tokenizer} if stop else {}
    with torch.inference_mode():
        whole = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=body["max_tokens"],
            eos_token_id=None if body.get("ignore_eos") else eos,
            pad_token_id=0,
            **options,
        )
    tokens = whole[0, len(prompt) :].tolist()
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    ends = [place for word in stop if (place := text.find(word)) >= 0]
    text = text[: min(ends)] if ends else text
    reason = "length" if len(tokens) == body["max_tokens"] and not ends else "stop"
    return {"text": text, "finish_reason": reason, "token_ids": tokens}


def _length(choice: dict[str, Any]) -> int:
    return len(choice["token_ids"])

"""A server that gives log-probabilities as vLLM, SGLang and llama.cpp do, from a distribution that is known."""

import json
import math
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

from bitbench.ports import Endpoint

VOCABULARY = 64
LETTER = 33  # what llama.cpp's server makes of "a"
# As there: what begins a character is written without a word about it, what goes on with one is an error.
BEGINS_A_CHARACTER, GOES_ON_WITH_A_CHARACTER = 60, 61


def logprob(after: int, token: int) -> float:
    """The next token's probability falls with its distance from twice the last one; normalised over the vocabulary."""
    weights = [-abs(one - 2 * after % VOCABULARY) / 4 for one in range(VOCABULARY)]
    return weights[token] - math.log(sum(math.exp(weight) for weight in weights))


def place(after: int, token: int, top: int) -> dict[str, Any]:
    known = {one: logprob(after, one) for one in range(VOCABULARY)}
    likeliest = sorted(known, key=lambda one: -known[one])[:top]
    return {str(one): {"logprob": known[one], "rank": 1} for one in [token, *likeliest]}


def completion(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """As llama.cpp's server, which adds the bias before it writes and tells how likely tokens were without."""
    after = body["prompt"][-1]
    known = {one: logprob(after, one) for one in range(VOCABULARY)}
    bias = {LETTER if one == "a" else one: value for one, value in body["logit_bias"]}
    written = max(known, key=lambda one: known[one] + bias.get(one, 0.0))
    if written == GOES_ON_WITH_A_CHARACTER:
        return 500, {
            "error": {"code": 500, "message": "The model produced output that does not match"}
        }
    if written == BEGINS_A_CHARACTER:
        return 200, {}

    def said(token: int) -> dict[str, Any]:
        return {"id": token, "bytes": [token + 64], "logprob": known[token]}

    ranked = sorted(known, key=lambda one: -known[one])[: body["n_probs"]]
    place = {**said(written), "top_logprobs": [said(token) for token in ranked]}
    return 200, {"completion_probabilities": [place]}


def generate(body: dict[str, Any]) -> dict[str, Any]:
    """As SGLang's own request: nothing about the first token, and of each other [log-probability, token, no text]."""
    own: list[Any] = [[None, body["input_ids"][0], None]]
    likeliest: list[Any] = [None]
    for after, token in pairwise(body["input_ids"]):
        own.append([logprob(after, token), token, None])
        ranked = sorted(range(VOCABULARY), key=lambda one: -logprob(after, one))[
            : body["top_logprobs_num"]
        ]
        likeliest.append([[logprob(after, one), one, None] for one in ranked])
    return {
        "text": "t",
        "meta_info": {"input_token_logprobs": own, "input_top_logprobs": likeliest},
    }


class QualityServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.answers_with: tuple[int, bytes] | None = None  # instead of what is right
        self.text_of: Callable[[dict[str, Any]], str] | None = None  # of a request for an answer
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(f"http://127.0.0.1:{self.server_address[1]}", "m", "key")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: QualityServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append({**body, "key": self.headers["Authorization"]})
        if self.path == "/completion":
            status, answer = completion(body)
            return self._answer(
                *(self.server.answers_with or (status, json.dumps(answer).encode()))
            )
        if self.path == "/generate":
            return self._answer(
                *(self.server.answers_with or (200, json.dumps(generate(body)).encode()))
            )
        prompt = body["prompt"]
        choice: dict[str, Any] = {
            "index": 0,
            "text": "t" * body["max_tokens"],
            "token_ids": [7] * body["max_tokens"],
        }
        if self.server.text_of is not None:
            choice["text"] = self.server.text_of(body)
        if "prompt_logprobs" in body:
            pairs = pairwise(prompt)
            choice["prompt_logprobs"] = [
                None,
                *(place(a, b, body["prompt_logprobs"]) for a, b in pairs),
            ]
        return self._answer(
            *(self.server.answers_with or (200, json.dumps({"choices": [choice]}).encode()))
        )

    def _answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass

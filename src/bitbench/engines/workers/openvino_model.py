"""A model in OpenVINO: loading, generation, scoring and its facts.

A part of `openvino_server.py`, loaded by path in its environment. It imports nothing of ours.
GenAI's ContinuousBatchingPipeline computes the requests. It gives no distributions over tokens, so
OpenVINO's runtime scores texts, with the same file and properties, in one pass each.
"""

import argparse
import json
import math
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai
from completion_server import Job  # type: ignore[import-not-found]
from openvino import opset13
from tokenizers import Tokenizer  # type: ignore[import-not-found]

IR = "openvino_model.xml"
RESOLVED = ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION", "INFERENCE_NUM_THREADS")
BLOCK = 32  # tokens of a block of the KV cache on a CPU
DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
RUNNING = openvino_genai.GenerationStatus.RUNNING
ROWS_AT_ONCE = 256  # rows of logits, in 64 bits: 262 MB for a vocabulary of 128,000


class OpenvinoModel:
    """The loaded model and its facts."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._folder: Path = arguments.model
        self._properties = _make_properties(arguments)
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_seqs = arguments.concurrency
        # Blocks for every request at its full length, so that none waits for another's cache.
        blocks_per_request = math.ceil(arguments.context_tokens / BLOCK) + 1
        scheduler.num_kv_blocks = arguments.concurrency * blocks_per_request
        scheduler.enable_prefix_caching = False
        self._batched_tokens: int = scheduler.max_num_batched_tokens
        self._blocks: int = scheduler.num_kv_blocks
        began = time.perf_counter()
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(self._folder), scheduler, "CPU", self._properties
        )
        self._load_s = time.perf_counter() - began
        self._numbers = count()
        self._streams: list[tuple[Job, Any]] = []
        self._scorer: Any = None
        self.tokenizer = Tokenizer.from_file(str(self._folder / "tokenizer.json"))
        config = json.loads((self._folder / "config.json").read_text(encoding="utf-8"))
        self.context_tokens: int | None = config.get("max_position_embeddings")
        self._eos = _end_tokens(self._folder)
        # Generate one token, so that the KV cache is allocated.
        first_token = self._eos[0] if self._eos else 0
        self.write([first_token], 1, [], ignore_eos=True)

    def begin(self, job: Job) -> None:
        self._streams.append((job, self._add(job.prompt, job.max_tokens, ignore_eos=True)))

    def step(self) -> None:
        """Compute one token for each request that is past its prompt, and send it at once."""
        if self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        for job, handle in self._streams:
            for token in _read_openvino_tokens(handle):
                job.add(token)
            if job.is_broken:
                handle.cancel()
                job.done.set()
            elif not job.done.is_set() and handle.get_status() != RUNNING:
                status = _request_status(handle)
                raise RuntimeError(
                    f"a request ended after {job.count} of {job.max_tokens} tokens: {status}"
                )
        self._streams = [(job, handle) for job, handle in self._streams if not job.done.is_set()]

    def write(
        self, prompt: list[int], max_tokens: int, stop: list[str], *, ignore_eos: bool
    ) -> list[int]:
        """Generate tokens as `completion_server.WholeModel` describes, while streams continue."""
        handle = self._add(prompt, max_tokens, ignore_eos=ignore_eos)
        tokens: list[int] = []
        while handle.get_status() == RUNNING:
            self.step()
            tokens += _read_openvino_tokens(handle)
            if stop and any(word in self.text_of(tokens, skip_special=True) for word in stop):
                handle.stop()
                break
        if not tokens:
            raise RuntimeError(f"a request ended without a token: {_request_status(handle)}")
        return tokens

    def text_of(self, tokens: list[int], *, skip_special: bool) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=skip_special))

    def score(self, prompt: list[int], top: int) -> list[dict[int, float]]:
        """Score a text as `completion_server.WholeModel` describes."""
        if self._scorer is None:
            path = str(self._folder / IR)
            self._scorer = openvino.Core().compile_model(path, "CPU", self._properties)
        request = self._scorer.create_infer_request()
        logits = request.infer(_make_decoder_inputs(self._scorer, prompt))[0][0]
        following = [*prompt[1:], int(logits[-1].argmax())]
        distributions: list[dict[int, float]] = []
        for first in range(0, len(prompt), ROWS_AT_ONCE):
            rows = _log_softmax(logits[first : first + ROWS_AT_ONCE])
            for row, token in zip(rows, following[first : first + ROWS_AT_ONCE], strict=True):
                best = np.argsort(-row, kind="stable")[:top].tolist()
                logprobs = {candidate: float(row[candidate]) for candidate in best}
                logprobs[token] = float(row[token])
                distributions.append(logprobs)
        return distributions

    def facts(self) -> dict[str, Any]:
        settings = resolved_openvino_properties(self._properties)
        cache_bytes = self._pipeline.get_metrics().kv_cache_size_in_bytes
        tokens = self._blocks * BLOCK
        return {
            "engine_version": _format_openvino_version(openvino_genai),
            "versions": {
                "openvino-genai": _format_openvino_version(openvino_genai),
                "openvino": _format_openvino_version(openvino),
                "python": ".".join(map(str, sys.version_info[:3])),
            },
            "kv_cache_bytes": cache_bytes or None,
            "kv_cache_tokens": tokens,
            "kv_bytes_per_token": cache_bytes // tokens or None,
            "weight_load_s": round(self._load_s, 3),
            "prefix_caching": False,
            "notes": [
                f"computes in {settings['INFERENCE_PRECISION_HINT']}, "
                f"KV cache {settings['KV_CACHE_PRECISION']}, "
                f"{settings['INFERENCE_NUM_THREADS']} threads, "
                f"at most {self._batched_tokens} tokens in a step",
            ],
        }

    def _add(self, prompt: list[int], max_tokens: int, *, ignore_eos: bool) -> Any:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.do_sample = False
        config.ignore_eos = ignore_eos
        if not ignore_eos:
            config.stop_token_ids = set(self._eos)
        ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
        return self._pipeline.add_request(next(self._numbers), ids, config)


def _make_properties(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return properties for OpenVINO's CPU plugin. Unset options keep its defaults."""
    properties = {
        "INFERENCE_PRECISION_HINT": DTYPES.get(arguments.dtype),
        "INFERENCE_NUM_THREADS": arguments.threads,
        "KV_CACHE_PRECISION": arguments.kv_cache_precision,
    }
    return {name: value for name, value in properties.items() if value is not None}


def _make_decoder_inputs(compiled: Any, prompt: list[int]) -> dict[str, Any]:
    """Return the inputs of a stateful decoder for one prompt and no past."""
    ids = np.array([prompt], dtype=np.int64)
    values = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "position_ids": np.arange(len(prompt), dtype=np.int64)[None],
        "beam_idx": np.zeros(1, dtype=np.int32),
    }
    names = {name.get_any_name() for name in compiled.inputs}
    return {name: value for name, value in values.items() if name in names}


def resolved_openvino_properties(properties: dict[str, Any]) -> dict[str, str]:
    """Return the properties that the plugin really uses on this processor, from an empty model."""
    inlet = opset13.parameter([1], np.float32)
    nothing = openvino.Model([opset13.relu(inlet)], [inlet], "nothing")
    compiled = openvino.Core().compile_model(nothing, "CPU", properties)
    return {name: _format_property(compiled.get_property(name)) for name in RESOLVED}


def _format_property(value: Any) -> str:
    """Return a property as text. Types of numbers are as in OpenVINO's documents: bf16."""
    return str(value.get_type_name()) if isinstance(value, openvino.Type) else str(value)


def _format_openvino_version(package: Any) -> str:
    """Return 2026.4.1 from 2026.4.1-22982-e213a147257-releases/2026/4."""
    return str(package.get_version()).partition("-")[0]


def _end_tokens(folder: Path) -> list[int]:
    file = folder / "generation_config.json"
    if not file.exists():
        return []
    ids = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
    if ids is None:
        return []
    return ids if isinstance(ids, list) else [ids]


def _read_openvino_tokens(handle: Any) -> list[int]:
    """Return the tokens that came since the last call."""
    tokens: list[int] = []
    if handle.can_read():
        for output in handle.read().values():
            tokens += output.generated_ids
    return tokens


def _request_status(handle: Any) -> str:
    """Return a request's status. IGNORED means that it does not fit into the KV cache."""
    return str(handle.get_status()).rpartition(".")[2]


def _log_softmax(logits: Any) -> Any:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))

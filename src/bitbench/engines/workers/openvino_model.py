"""A model in OpenVINO: how it is loaded, how it generates, and what it says about itself.

A part of `openvino_server.py`, loaded by path in its environment; imports nothing of ours. Requests are computed by
GenAI's ContinuousBatchingPipeline. It gives no distributions over tokens, so texts are scored by OpenVINO's runtime on
the same file and with the same properties, in one pass each.
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
ROWS_AT_ONCE = 256  # of the logits, in 64 bits: a vocabulary of 128,000 then takes 262 MB


class OpenvinoModel:
    """The loaded model and what it says about itself."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._folder: Path = arguments.model
        self._properties = _properties_of(arguments)
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_seqs = arguments.concurrency
        # Room for every request at its full length, so that none waits for another's cache.
        scheduler.num_kv_blocks = arguments.concurrency * (
            math.ceil(arguments.context_tokens / BLOCK) + 1
        )
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
        self.write(
            [self._eos[0] if self._eos else 0], 1, [], ignore_eos=True
        )  # sets the KV cache aside

    def begin(self, job: Job) -> None:
        self._streams.append((job, self._add(job.prompt, job.max_tokens, ignore_eos=True)))

    def step(self) -> None:
        """One token for each request that is past its prompt, sent at once."""
        if self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        for job, handle in self._streams:
            for token in _read_openvino_tokens(handle):
                job.add(token)
            if job.is_broken:
                handle.cancel()
                job.done.set()
            elif not job.done.is_set() and handle.get_status() != RUNNING:
                raise RuntimeError(
                    f"a request ended after {job.count} of {job.max_tokens} tokens: {_request_status(handle)}"
                )
        self._streams = [(job, handle) for job, handle in self._streams if not job.done.is_set()]

    def write(
        self, prompt: list[int], max_tokens: int, stop: list[str], *, ignore_eos: bool
    ) -> list[int]:
        """As `completion_server.WholeModel` says; the streams that are there go on meanwhile."""
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
        """As `completion_server.WholeModel` says."""
        if self._scorer is None:
            self._scorer = openvino.Core().compile_model(
                str(self._folder / IR), "CPU", self._properties
            )
        logits = self._scorer.create_infer_request().infer(_decoder_inputs(self._scorer, prompt))[
            0
        ][0]
        following = [*prompt[1:], int(logits[-1].argmax())]
        places: list[dict[int, float]] = []
        for first in range(0, len(prompt), ROWS_AT_ONCE):
            rows = _log_softmax(logits[first : first + ROWS_AT_ONCE])
            for row, token in zip(rows, following[first : first + ROWS_AT_ONCE], strict=True):
                best = np.argsort(-row, kind="stable")[:top].tolist()
                places.append(
                    {
                        **{candidate: float(row[candidate]) for candidate in best},
                        token: float(row[token]),
                    }
                )
        return places

    def facts(self) -> dict[str, Any]:
        settings = resolved_openvino_properties(self._properties)
        cache_bytes = self._pipeline.get_metrics().kv_cache_size_in_bytes
        tokens = self._blocks * BLOCK
        return {
            "engine_version": _openvino_version(openvino_genai),
            "versions": {
                "openvino-genai": _openvino_version(openvino_genai),
                "openvino": _openvino_version(openvino),
                "python": ".".join(map(str, sys.version_info[:3])),
            },
            "kv_cache_bytes": cache_bytes or None,
            "kv_cache_tokens": tokens,
            "kv_bytes_per_token": cache_bytes // tokens or None,
            "weight_load_s": round(self._load_s, 3),
            "prefix_caching": False,
            "notes": [
                f"computes in {settings['INFERENCE_PRECISION_HINT']}, KV cache {settings['KV_CACHE_PRECISION']}, "
                f"{settings['INFERENCE_NUM_THREADS']} threads, at most {self._batched_tokens} tokens in a step",
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


def _properties_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Of OpenVINO's CPU plugin; what is not asked for is its own choice."""
    asked = {
        "INFERENCE_PRECISION_HINT": DTYPES.get(arguments.dtype),
        "INFERENCE_NUM_THREADS": arguments.threads,
        "KV_CACHE_PRECISION": arguments.kv_cache_precision,
    }
    return {name: value for name, value in asked.items() if value is not None}


def _decoder_inputs(compiled: Any, prompt: list[int]) -> dict[str, Any]:
    """The inputs of a stateful decoder for one prompt and no past."""
    ids = np.array([prompt], dtype=np.int64)
    known = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "position_ids": np.arange(len(prompt), dtype=np.int64)[None],
        "beam_idx": np.zeros(1, dtype=np.int32),
    }
    wanted = {name.get_any_name() for name in compiled.inputs}
    return {name: value for name, value in known.items() if name in wanted}


def resolved_openvino_properties(properties: dict[str, Any]) -> dict[str, str]:
    """What the plugin makes of these properties on this processor, told by a model that does nothing."""
    inlet = opset13.parameter([1], np.float32)
    nothing = openvino.Model([opset13.relu(inlet)], [inlet], "nothing")
    compiled = openvino.Core().compile_model(nothing, "CPU", properties)
    return {name: _shown_property(compiled.get_property(name)) for name in RESOLVED}


def _shown_property(value: Any) -> str:
    """Types of numbers as OpenVINO spells them in its documents: bf16."""
    return str(value.get_type_name()) if isinstance(value, openvino.Type) else str(value)


def _openvino_version(package: Any) -> str:
    """2026.4.1 of 2026.4.1-22982-e213a147257-releases/2026/4."""
    return str(package.get_version()).partition("-")[0]


def _end_tokens(folder: Path) -> list[int]:
    file = folder / "generation_config.json"
    found = (
        json.loads(file.read_text(encoding="utf-8")).get("eos_token_id") if file.exists() else None
    )
    return found if isinstance(found, list) else [] if found is None else [found]


def _read_openvino_tokens(handle: Any) -> list[int]:
    """The tokens that came since the last call."""
    return (
        [token for output in handle.read().values() for token in output.generated_ids]
        if handle.can_read()
        else []
    )


def _request_status(handle: Any) -> str:
    """IGNORED: the request does not fit into the KV cache."""
    return str(handle.get_status()).rpartition(".")[2]


def _log_softmax(logits: Any) -> Any:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))

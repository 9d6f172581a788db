"""A model in transformers: loading, generation, scoring and its facts.

It is a part of `transformers_server.py` and runs in the engine's environment, so it imports modules
of this folder but not the package `bitbench`. `checkpoint_layers.py` adds layers of checkpoints
that transformers does not know.
"""

import argparse
import importlib
import sys
import time
from pathlib import Path
from typing import Any

import checkpoint_layers  # type: ignore[import-not-found]
import torch
import transformers
from completion_server import Job  # type: ignore[import-not-found]
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.generation.streamers import BaseStreamer
from transformers_kernels import (  # type: ignore[import-not-found]
    transformers_kernel_choices,
    transformers_kernel_tensors,
)
from transformers_profile import StepProfiler  # type: ignore[import-not-found]

QUANTIZE = ("torchao-int8wo", "torchao-int8da-int8w", "torchao-int4wo")
INT4_GROUP = 64  # divides the 576 columns of SmolLM2
ROWS_AT_ONCE = 256  # rows of logits, in 32 bits: 131 MB for a vocabulary of 128,000


class BatchStreamer(BaseStreamer):  # type: ignore[misc]
    """A streamer that receives the prompts, then one token per request and step."""

    def __init__(self, jobs: list[Job], profiler: StepProfiler) -> None:
        self._jobs = jobs
        self._profiler = profiler
        self._saw_prompts = False

    def put(self, value: torch.Tensor) -> None:
        if not self._saw_prompts:
            self._saw_prompts = True
            return
        for job, token in zip(self._jobs, value.tolist(), strict=True):
            if job.count < job.max_tokens:
                job.add(token)
        if any(job.count < job.max_tokens for job in self._jobs):
            self._profiler.begin_step(sequences=len(self._jobs))

    def end(self) -> None:
        pass


class TransformersModel:
    """A model that transformers has loaded, with its tokenizer and its profiler."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        if arguments.threads:
            torch.set_num_threads(arguments.threads)
        self.profiler = StepProfiler(arguments.trace_folder)
        self._device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
        # This imports every installed quantization package, which is not a part of loading weights.
        importlib.import_module("transformers.quantizers.auto")
        checkpoint_layers.prepare_checkpoint_layers(Path(arguments.model), self._device)
        began = time.perf_counter()
        self._model = AutoModelForCausalLM.from_pretrained(
            arguments.model,
            dtype=getattr(torch, arguments.dtype),
            attn_implementation=arguments.attn_implementation,
        )
        self._model.to(self._device).eval()
        # Without an end token only the length ends a sequence, and no step searches for the token.
        # `generate` falls back to the model's own configuration, so the token is removed there.
        self._eos = self._model.generation_config.eos_token_id
        self._model.generation_config.eos_token_id = None
        self._quantize: str | None = arguments.quantize
        if self._quantize:
            _quantize_transformers(self._model, self._quantize)
        if getattr(self._model.config, "quantization_config", None) is not None:
            with torch.inference_mode():  # compressed-tensors unpacks its layers in the first pass
                self._model(torch.tensor([[0]], device=self._device))
        self._load_s = time.perf_counter() - began
        self._whole_tokenizer = AutoTokenizer.from_pretrained(arguments.model)
        self.tokenizer = self._whole_tokenizer.backend_tokenizer
        self.context_tokens: int | None = getattr(
            self._model.config, "max_position_embeddings", None
        )

    def generate(self, jobs: list[Job]) -> None:
        """Generate the greedy answers of a batch of jobs, each with its own maximum length."""
        self.profiler.begin_step(
            prompts=len(jobs), prompt_tokens=sum(len(job.prompt) for job in jobs)
        )
        longest = max(len(job.prompt) for job in jobs)
        prompts = []
        masks = []
        for job in jobs:
            padding = [0] * (longest - len(job.prompt))
            prompts.append(padding + job.prompt)
            masks.append(padding + [1] * len(job.prompt))
        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=max(job.max_tokens for job in jobs),
            eos_token_id=None,
            pad_token_id=0,
        )
        with torch.inference_mode():
            self._model.generate(
                torch.tensor(prompts, device=self._device),
                attention_mask=torch.tensor(masks, device=self._device),
                generation_config=config,
                streamer=BatchStreamer(jobs, self.profiler),
            )
        self.profiler.end_step()

    def score(self, prompt: list[int], top: int) -> list[dict[int, float]]:
        """Score a text as `completion_server.WholeModel` describes."""
        distributions: list[dict[int, float]] = []
        with torch.inference_mode():
            logits = self._model(
                torch.tensor([prompt], device=self._model.device), use_cache=False
            ).logits[0]
            following = torch.tensor([*prompt[1:], int(logits[-1].argmax())], device=logits.device)
            for first in range(0, len(prompt), ROWS_AT_ONCE):
                rows = logits[first : first + ROWS_AT_ONCE].float().log_softmax(-1)
                tokens = following[first : first + ROWS_AT_ONCE]
                best = rows.topk(min(top, rows.shape[1]))
                values = rows.gather(1, tokens[:, None])[:, 0]
                for best_ids, best_values, token, value in zip(
                    best.indices.tolist(),
                    best.values.tolist(),
                    tokens.tolist(),
                    values.tolist(),
                    strict=True,
                ):
                    logprobs = dict(zip(best_ids, best_values, strict=True))
                    logprobs[token] = value
                    distributions.append(logprobs)
        return distributions

    def write(
        self, prompt: list[int], max_tokens: int, stop: list[str], *, ignore_eos: bool
    ) -> list[int]:
        """Generate tokens as `completion_server.WholeModel` describes."""
        ids = torch.tensor([prompt], device=self._model.device)
        eos = None if ignore_eos else self._eos
        options: dict[str, Any] = {}
        if stop:
            options = {"stop_strings": stop, "tokenizer": self._whole_tokenizer}
        with torch.inference_mode():
            whole = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=max_tokens,
                eos_token_id=eos,
                pad_token_id=0,
                **options,
            )
        tokens: list[int] = whole[0, len(prompt) :].tolist()
        return tokens

    def text_of(self, tokens: list[int], *, skip_special: bool) -> str:
        return str(self._whole_tokenizer.decode(tokens, skip_special_tokens=skip_special))

    def facts(self) -> dict[str, Any]:
        """Return the versions, kernels and sizes that are recorded with the instance."""
        versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        if self._quantize:
            versions["torchao"] = sys.modules["torchao"].__version__
        versions["python"] = ".".join(map(str, sys.version_info[:3]))
        note = f"{str(self._model.dtype).removeprefix('torch.')} on {self._device}"
        if self._device == "cpu":
            note += f", {torch.get_num_threads()} threads"
        return {
            "engine_version": transformers.__version__,
            "versions": versions,
            "kernel_choices": transformers_kernel_choices(self._model),
            "weight_bytes_loaded": transformers_model_bytes(self._model),
            "kv_value_bytes": self._model.dtype.itemsize,  # the cache has the type of activations
            "weight_load_s": round(self._load_s, 3),
            "prefix_caching": False,
            "notes": [note],
        }


def _quantize_transformers(model: Any, method: str) -> None:
    """Quantize all linear layers except the last, which most small models share with their input.

    The 4-bit recipe is for CPUs: torchao 0.18 keeps its packed layout for CPUs in a prototype.
    """
    from torchao.quantization import (
        Int8DynamicActivationInt8WeightConfig,
        Int8WeightOnlyConfig,
        quantize_,
    )

    if method == "torchao-int8wo":
        config = Int8WeightOnlyConfig()
    elif method == "torchao-int8da-int8w":
        config = Int8DynamicActivationInt8WeightConfig()
    else:
        from torchao.prototype.quantization.int4 import inference_workflow as int4

        config = int4.PrototypeInt4WeightOnlyConfig(group_size=INT4_GROUP)
    last = model.get_output_embeddings()
    quantize_(
        model,
        config,
        filter_fn=lambda module, _: isinstance(module, torch.nn.Linear) and module is not last,
    )


def transformers_model_bytes(model: Any) -> int:
    """Return the bytes of all parameters and buffers in memory. Tied weights count once."""
    total = 0
    for tensor in [*model.parameters(), *model.buffers()]:
        for part in transformers_kernel_tensors(tensor):
            total += part.nbytes
    return total

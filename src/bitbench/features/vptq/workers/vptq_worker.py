"""Makes a VPTQ checkpoint of one model: `python -I vptq_worker.py JOB.json`, run in the quantize environment.

Block by block: the calibration text runs through it, each linear layer is solved from what it met, and the text goes on
through the block as it has become. Every solved layer is kept in a file of its own, so that work that was interrupted
goes on where it was. Writes lines of JSON to its output ({"event": "stage" | "part" | "done" | "failed", …}) and
everything else to its error stream. bitbench is not installed where this runs: its package lies around this file.
"""

import os

# One thread solves one layer, and a block has about seven; set before numpy is imported.
os.environ["OPENBLAS_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // 7))

import importlib.metadata
import json
import re
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

# Run in isolated mode, python looks nowhere else.
sys.path += [str(Path(__file__).parents[3] / place) for place in ("util/isolated", "quantize/workers")]
sys.path.append(str(Path(__file__).parent))
from bitbench_package import make_importable  # type: ignore[import-not-found]
from calibration_text import calibration_text_pieces  # type: ignore[import-not-found]
from job_worker import Json, Reports, job_worker_peak_bytes, run_as_job_worker  # type: ignore[import-not-found]
from vptq_calibration import (  # type: ignore[import-not-found]
    Call,
    advance_vptq_calibration,
    vptq_calibration_blocks,
    vptq_calibration_calls,
    vptq_calibration_hessians,
)

REPORTED_PACKAGES = ("numpy", "torch", "transformers")
ERROR = "proxy_error"  # in the header of a kept file


def _work(job: Json, reports: Reports) -> Json:
    make_importable()
    return {"facts": Quantizer(job, reports).run()}


class Quantizer:
    def __init__(self, job: Json, reports: Reports) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from bitbench.features.vptq import layout, solver

        self._job, self._reports = job, reports
        self._torch, self._layout, self._solver = torch, layout, solver  # imported before threads use them
        self._kept = Path(job["kept"])
        self._tokenizer = AutoTokenizer.from_pretrained(job["model"], local_files_only=True)
        self._model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.bfloat16, local_files_only=True)
        self._model.eval().requires_grad_(False)
        self._blocks = vptq_calibration_blocks(self._model)
        self._names = {module: name for name, module in self._model.named_modules()}
        self._layers = [self._linear_layers(block) for block in self._blocks]
        if not any(self._layers):
            raise ValueError("the recipe's `ignore` leaves no linear layer to quantize")
        self._errors: list[Json] = []
        self._configs: Json = {}
        self._bits = Bits()

    def run(self) -> Json:
        self._reports.send("stage", name="calibrating")
        samples = calibration_text_pieces(self._job, self._tokenizer)
        with self._torch.inference_mode():
            calls = vptq_calibration_calls(self._model, self._blocks[0], samples)
            self._report()
            for block, layers in zip(self._blocks, self._layers, strict=True):
                self._solve_block(block, layers, calls)
                advance_vptq_calibration(block, calls)
            self._reports.send("stage", name="writing the checkpoint")
            self._write()
        print(self._bits.sentence(), file=sys.stderr)
        return {
            "versions": {name: importlib.metadata.version(name) for name in REPORTED_PACKAGES},
            "peak_memory_bytes": job_worker_peak_bytes(),
            "samples": len(samples),
            "tokens": sum(len(sample) for sample in samples),
            "layer_errors": self._errors,
            "index_bits_per_weight": round(self._bits.indices / self._bits.weights, 3),
        }

    def _linear_layers(self, block: Any) -> dict[str, Any]:
        found = {self._names[module]: module for module in block.modules() if isinstance(module, self._torch.nn.Linear)}
        return {name: module for name, module in found.items() if not is_ignored(name, self._job["ignore"])}

    def _report(self) -> None:
        """Layers differ in size, so that what is done is also told as a share of the weights."""
        sizes = {name: module.weight.numel() for layers in self._layers for name, module in layers.items()}
        done = [name for name in sizes if self._file(name).exists()]
        share = sum(sizes[name] for name in done) / max(1, sum(sizes.values()))
        self._reports.send("part", part=len(done), parts=len(sizes), share=share)

    def _solve_block(self, block: Any, layers: dict[str, Any], calls: list[Call]) -> None:
        missing = {name: module for name, module in layers.items() if not self._file(name).exists()}
        if missing:
            hessians = vptq_calibration_hessians(block, missing, calls)
            by_size = sorted(missing, key=lambda name: missing[name].weight.numel(), reverse=True)
            workers = min(len(by_size), self._torch.get_num_threads())
            with ThreadPoolExecutor(workers, initializer=self._torch.set_num_threads, initargs=(1,)) as pool:
                jobs = [pool.submit(self._solve, name, missing[name], hessians[name]) for name in by_size]
                for job in as_completed(jobs):
                    job.result()
                    self._report()
        for name, module in layers.items():
            self._put_in_place(name, module)

    def _solve(self, name: str, module: Any, hessian: Any) -> None:
        import numpy as np
        from safetensors.numpy import save_file

        began = time.monotonic()
        rng = np.random.default_rng([self._job["seed"], zlib.crc32(name.encode())])
        solved = self._solver.quantize_layer(
            module.weight.float().numpy(),
            hessian.double().numpy(),
            self._solver.Settings(**self._job["settings"]),
            rng,
            bias=None if module.bias is None else module.bias.float().numpy(),
            dot=self._dot,
        )
        whole = {"config": json.dumps(self._layout.describe_vptq_layer(solved.layer)), ERROR: repr(solved.proxy_error)}
        unfinished = self._file(name).with_suffix(".tmp")
        save_file(self._layout.layout_tensors(solved.layer), unfinished, metadata=whole)
        unfinished.rename(self._file(name))
        took = time.monotonic() - began
        print(f"{name}: proxy error {solved.proxy_error:.5f}, {took:.1f} s", file=sys.stderr, flush=True)

    def _dot(self, left: Any, right: Any, out: Any) -> None:
        torch = self._torch
        torch.mm(torch.from_numpy(left), torch.from_numpy(right), out=torch.from_numpy(out))

    def _put_in_place(self, name: str, module: Any) -> None:
        """The weights as whoever loads the checkpoint will have them."""
        from safetensors import safe_open

        with safe_open(self._file(name), "np") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is no mapping
            said = file.metadata()
        config = json.loads(said["config"])
        weight = self._layout.dequantize_layout(self._layout.vptq_layer_from_layout(tensors, config))
        module.weight.copy_(self._torch.from_numpy(weight))
        self._configs[name] = config
        self._errors.append({"layer": name, "method": "VPTQ proxy", "error": float(said[ERROR])})
        self._bits.add(module.weight.numel(), tensors)

    def _write(self) -> None:
        from safetensors.torch import load_file, save_file

        target = Path(self._job["checkpoint"])
        target.mkdir()
        solved = {f"{name}.weight" for name in self._configs} | {f"{name}.bias" for name in self._configs}
        tensors: Json = {}
        for name, tensor in self._model.state_dict().items():
            seen = any(tensor.data_ptr() == other.data_ptr() for other in tensors.values())  # tied: stored once
            if name not in solved and not seen:
                tensors[name] = tensor.contiguous()
        for name in self._configs:
            tensors |= {f"{name}.{key}": value for key, value in load_file(self._file(name)).items()}
        save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
        self._tokenizer.save_pretrained(target)
        self._model.generation_config.save_pretrained(target)
        self._model.config.save_pretrained(target)
        config = json.loads((target / "config.json").read_text(encoding="utf-8"))
        config["quantization_config"] = {"quant_method": self._layout.METHOD, "config_for_layers": self._configs}
        (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def _file(self, name: str) -> Path:
        return self._kept / f"{name}.safetensors"


class Bits:
    """What is stored, counted in bits, against the weights that it stands for."""

    def __init__(self) -> None:
        self.weights = self.indices = self.all = 0

    def add(self, weights: int, tensors: Json) -> None:
        self.weights += weights
        self.indices += sum(8 * value.nbytes for name, value in tensors.items() if name.endswith("indices"))
        self.all += sum(8 * value.nbytes for name, value in tensors.items() if name != "bias")

    def sentence(self) -> str:
        indices, together = self.indices / self.weights, self.all / self.weights
        return f"bits per weight: {indices:.3f} for the indices, {together:.3f} with codebooks and all else"


def is_ignored(layer: str, ignore: list[str]) -> bool:
    """A layer's name, or `re:` and a pattern for its beginning, as in the other recipes."""
    return any(
        re.match(pattern.removeprefix("re:"), layer) is not None if pattern.startswith("re:") else layer == pattern
        for pattern in ignore
    )


if __name__ == "__main__":
    sys.exit(run_as_job_worker(sys.argv[1], _work))

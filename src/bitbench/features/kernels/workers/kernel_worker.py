"""Checks and times kernel cases: `python -I kernel_worker.py JOB.json`, run in an environment with torch.

Writes lines of JSON to its output ({"event": "machine" | "case" | "point" | "done" | "failed", …}).
bitbench is not installed where this runs: the job says where its native module is.
"""

import copy
import gc
import importlib
import random
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(
    str(Path(__file__).parents[3] / "util" / "isolated")
)  # run in isolated mode, python looks nowhere else
from bitbench_package import load_bitbench_module, make_importable  # type: ignore[import-not-found]
from job_worker import Json, Reports, run_as_job_worker  # type: ignore[import-not-found]

ALIGNMENT = 64  # bytes: a cache line
CHECKED_ROWS = 64  # at either end: enough to meet every path of a kernel, and its padding
COLD_CACHES = 4  # weights that a case rotates over, as a multiple of the device's last cache


def _work(job: Json, reports: Reports) -> Json:
    make_importable()
    _load_native(job["native"])
    KernelBench(job, reports).run()
    return {}


def _load_native(native: str | None) -> None:
    if native is not None:
        try:
            load_bitbench_module("bitbench._native", Path(native))
        except ImportError as error:  # the case that needs it says so
            print(error, file=sys.stderr)


class FilledPool:
    """See `case.WeightPool`. The first gigabytes are filled with repeats of one random piece."""

    PIECE = 8 * 2**20

    def __init__(self, size_bytes: int, threads: int, seed: int, device: str) -> None:
        import torch

        generator = torch.Generator().manual_seed(seed)
        self.size_bytes, self.threads = size_bytes, threads
        self._first_byte = 0
        self._bytes = torch.empty(size_bytes, dtype=torch.uint8, device=device)
        self._bfloat16 = torch.empty(size_bytes // 2, dtype=torch.bfloat16, device=device)
        numbers = torch.randint(0, 256, (self.PIECE + 64,), generator=generator, dtype=torch.uint8)
        _fill(self._bytes, numbers.to(device))
        _fill(
            self._bfloat16, torch.randn(self.PIECE + 64, generator=generator).bfloat16().to(device)
        )
        # Of two bfloat16 numbers the second gives sign, exponent and upper digits, the first only further digits.
        self._float32 = self._bfloat16[: size_bytes // 4 * 2].view(torch.float32)

    def part(self, first_byte: int) -> "FilledPool":
        """The pool from another place on: cases that start far apart do not bring each other's weights into the
        cache."""
        part = copy.copy(self)
        part._first_byte = first_byte
        return part

    def bytes_at(self, offset: int, count: int) -> Any:
        return self._cut(self._bytes, offset, count)

    def bfloat16_at(self, offset: int, count: int) -> Any:
        return self._cut(self._bfloat16, offset, count)

    def float32_at(self, offset: int, count: int) -> Any:
        return self._cut(self._float32, offset, count)

    def _cut(self, source: Any, offset: int, count: int) -> Any:
        """From a cache line on, wrapping around where the end is too near."""
        step = ALIGNMENT // source.element_size()
        room = source.numel() - count
        first = self._first_byte // source.element_size() + offset
        start = -(-first // step) * step % (room + 1) // step * step
        return source[start : start + count]


def _fill(target: Any, piece: Any) -> None:
    for start in range(0, target.numel(), piece.numel()):
        end = min(start + piece.numel(), target.numel())
        target[start:end] = piece[: end - start]


def _add_readings(known: dict[str, list[float]], found: dict[str, list[float]]) -> None:
    for name, values in found.items():
        known[name] += values


class KernelBench:
    def __init__(self, job: Json, reports: Reports) -> None:
        import torch

        from bitbench.features.kernels.case import KernelShape
        from bitbench.features.kernels.device import open_device

        self._torch, self._job, self._reports = torch, job, reports
        self._threads = torch.get_num_threads()
        self._device = open_device(job["device"], torch)
        self._cold_bytes = max(job["cold_bytes"], COLD_CACHES * self._device.cache_bytes)
        self._cases = [
            case
            for case in self._imported()
            if job["all_cases"] or self._is_usual(case) or case.name in job["against"]
        ]
        self._shapes = [KernelShape(*pair) for pair in job["shapes"]]
        self._rng = random.Random(job["seed"])

    def _imported(self) -> Iterator[Any]:
        for module, name in self._job["cases"]:
            case = importlib.import_module(module).__dict__[name]
            yield case() if isinstance(case, type) else case

    def run(self) -> None:
        from bitbench.features.kernels.device import measure_device_roof

        largest = max(
            (case.weight_bytes(shape) for case in self._cases for shape in self._shapes), default=0
        )
        size = max(self._cold_bytes, largest) + 2**20
        pool = FilledPool(size, self._threads, self._job["seed"], self._device.name)
        roof = measure_device_roof(pool, self._device)
        points = [(shape, batch) for shape in self._shapes for batch in self._job["batches"]]
        for _ in range(self._job["passes"]):
            self._rng.shuffle(points)
            for shape, batch in points:
                self._point(shape, batch, pool)
                _add_readings(roof, measure_device_roof(pool, self._device))
                gc.collect()
        _add_readings(roof, measure_device_roof(pool, self._device))
        self._reports.send("machine", **self._machine(roof))

    def _is_usual(self, case: Any) -> bool:
        return not case.on_request and self._device.name in case.devices

    def _why_not(self, case: Any, shape: Any, batch: int) -> str | None:
        if self._device.name not in case.devices:
            return f"runs on {' or '.join(case.devices)}, not on {self._device.name}"
        if not case.batches[0] <= batch <= case.batches[1]:
            return f"takes batches from {case.batches[0]} to {case.batches[1]}"
        cause: str | None = case.why_not(shape)
        return cause

    def _machine(self, readings: dict[str, list[float]]) -> Json:
        facts = {"torch": self._torch.__version__, "threads": self._threads, "isa": None}
        facts |= {"cold_bytes": self._cold_bytes, **self._device.facts()}
        if native := sys.modules.get("bitbench._native"):
            facts["isa"] = native.vptq_isas()[0]
        best = {name: max(readings[name]) for name in ("read_bytes_per_s", "flops_per_s")}
        return facts | best | {"readings": readings}

    def _point(self, shape: Any, batch: int, pool: FilledPool) -> None:
        """All cases of one shape and batch, each checked, then timed in turn in random order."""
        prepared = {}
        for place, case in enumerate(self._cases):
            cause = self._why_not(case, shape, batch)
            error = None
            if cause is None:
                copies = -(-self._cold_bytes // case.weight_bytes(shape))
                try:
                    made = case.prepare(
                        shape, copies, pool.part(place * pool.size_bytes // len(self._cases))
                    )
                    error = self._error(case, made, shape, batch)
                except Exception as failed:  # out of memory, a kernel that does not compile: a result like any other
                    cause = f"failed: {type(failed).__name__}: {failed}".splitlines()[0]
                else:
                    if error <= case.allowed_error:
                        prepared[case.name] = (case, made, copies)
                    else:
                        cause = f"wrong: relative error {error:.2g}, at most {case.allowed_error:.2g} is allowed"
            self._reports.send(
                "case",
                name=case.name,
                shape=[shape.in_features, shape.out_features],
                batch=batch,
                error=error,
                cause=cause,
                labels=case.labels,
                weight_bytes=case.weight_bytes(shape),
            )
        self._reports.send(
            "point",
            shape=[shape.in_features, shape.out_features],
            batch=batch,
            seconds=self._times(prepared, shape, batch),
        )

    def _error(self, case: Any, made: Any, shape: Any, batch: int) -> float:
        x = self._activations(shape, batch).to(getattr(self._torch, case.check_dtype))
        y = made.run(x.to(self._device.name), 0).double().cpu()
        n = shape.out_features
        wrong = norm = 0.0
        for start in sorted({0, max(0, n - n % CHECKED_ROWS - CHECKED_ROWS)}):
            rows = slice(start, min(start + CHECKED_ROWS, n) if start == 0 else n)
            wanted = x.double() @ self._torch.from_numpy(made.reference(rows)).T
            wrong += float((y[:, rows] - wanted).square().sum())
            norm += float(wanted.square().sum())
        return float((wrong / norm) ** 0.5)

    def _activations(self, shape: Any, batch: int) -> Any:
        generator = self._torch.Generator().manual_seed(self._job["seed"])
        return self._torch.randn((batch, shape.in_features), generator=generator).bfloat16()

    def _times(self, prepared: Json, shape: Any, batch: int) -> dict[str, list[float]]:
        """Seconds per round; a round runs each case once. The first round warms up and does not count."""
        inputs = {}
        for name, (case, made, _) in prepared.items():
            dtype = getattr(self._torch, case.dtype)
            inputs[name] = self._activations(shape, batch).to(device=self._device.name, dtype=dtype)
            made.run(inputs[name], 0)  # may compile for this type of activations
        seconds: dict[str, list[float]] = {name: [] for name in prepared}
        order = list(prepared)
        began = time.perf_counter()
        gc.disable()
        try:
            for turn in range(self._job["most_rounds"] + 1):
                self._rng.shuffle(order)
                for name in order:
                    _, made, copies = prepared[name]
                    seconds[name].append(
                        self._device.seconds(partial(made.run, inputs[name], turn % copies))
                    )
                if (
                    turn >= self._job["least_rounds"]
                    and time.perf_counter() - began > self._job["point_seconds"]
                ):
                    break
        finally:
            gc.enable()
        return {name: values[1:] for name, values in seconds.items()}


if __name__ == "__main__":
    sys.exit(run_as_job_worker(sys.argv[1], _work))

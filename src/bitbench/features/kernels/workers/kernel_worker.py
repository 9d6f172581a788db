"""Check and time kernel cases: `python -I kernel_worker.py JOB.json`, in an environment with torch.

It writes lines of JSON to its output ({"event": "machine" | "case" | "point" | "done" | "failed",
…}). bitbench is not installed in that environment. The job has the path of its native module.
"""

import copy
import gc
import importlib
import itertools
import random
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

# Python in isolated mode looks nowhere else.
sys.path.append(str(Path(__file__).parents[3] / "util" / "isolated"))
from bitbench_package import load_bitbench_module, make_importable  # type: ignore[import-not-found]
from job_worker import Json, Reports, run_as_job_worker  # type: ignore[import-not-found]

ALIGNMENT = 64  # bytes: a cache line
CHECKED_ROWS = 64  # at either end: enough to test every path of a kernel, and its padding
COLD_CACHES = 4  # weights that a case rotates over, as a multiple of the device's last cache


def _run_kernel_bench(job: Json, reports: Reports) -> Json:
    make_importable()
    _load_native(job["native"])
    KernelBench(job, reports).run()
    return {}


def _load_native(native: str | None) -> None:
    if native is not None:
        try:
            load_bitbench_module("bitbench._native", Path(native))
        except ImportError as error:  # a case that needs the module reports this
            print(error, file=sys.stderr)


class FilledPool:
    """A `case.WeightPool` that is filled with repeats of one random piece."""

    PIECE = 8 * 2**20

    def __init__(self, size_bytes: int, threads: int, seed: int, device: str) -> None:
        import torch

        generator = torch.Generator().manual_seed(seed)
        self.size_bytes = size_bytes
        self.threads = threads
        self._first_byte = 0
        self._bytes = torch.empty(size_bytes, dtype=torch.uint8, device=device)
        self._bfloat16 = torch.empty(size_bytes // 2, dtype=torch.bfloat16, device=device)
        size = self.PIECE + 64
        numbers = torch.randint(0, 256, (size,), generator=generator, dtype=torch.uint8)
        _fill(self._bytes, numbers.to(device))
        _fill(self._bfloat16, torch.randn(size, generator=generator).bfloat16().to(device))
        # The second of two bfloat16 numbers is sign, exponent and upper digits of a float32. The
        # first is only its lower digits.
        self._float32 = self._bfloat16[: size_bytes // 4 * 2].view(torch.float32)

    def part(self, first_byte: int) -> "FilledPool":
        """Return the pool from another byte on.

        Cases that start far apart do not bring each other's weights into the cache.
        """
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
        """Return numbers that start at a cache line. Wrap around if the end is too near."""
        step = ALIGNMENT // source.element_size()
        room = source.numel() - count
        first = self._first_byte // source.element_size() + offset
        start = -(-first // step) * step % (room + 1) // step * step
        return source[start : start + count]


def _fill(target: Any, piece: Any) -> None:
    for start in range(0, target.numel(), piece.numel()):
        end = min(start + piece.numel(), target.numel())
        target[start:end] = piece[: end - start]


def _add_readings(readings: dict[str, list[float]], more: dict[str, list[float]]) -> None:
    for name, values in more.items():
        readings[name] += values


class KernelBench:
    """A bench that runs one job and sends its events."""

    def __init__(self, job: Json, reports: Reports) -> None:
        import torch

        from bitbench.features.kernels.case import KernelShape
        from bitbench.features.kernels.device import open_device

        self._torch = torch
        self._job = job
        self._reports = reports
        self._threads = torch.get_num_threads()
        self._device = open_device(job["device"], torch)
        self._cold_bytes = max(job["cold_bytes"], COLD_CACHES * self._device.cache_bytes)
        self._cases = []
        for case in self._iter_cases():
            if job["all_cases"] or self._is_usual(case) or case.name in job["against"]:
                self._cases.append(case)
        self._shapes = [KernelShape(*pair) for pair in job["shapes"]]
        self._rng = random.Random(job["seed"])

    def _iter_cases(self) -> Iterator[Any]:
        for module, name in self._job["cases"]:
            case = importlib.import_module(module).__dict__[name]
            yield case() if isinstance(case, type) else case

    def run(self) -> None:
        from bitbench.features.kernels.device import measure_device_roof

        largest = 0
        for case, shape in itertools.product(self._cases, self._shapes):
            largest = max(largest, case.weight_bytes(shape))
        size = max(self._cold_bytes, largest) + 2**20
        pool = FilledPool(size, self._threads, self._job["seed"], self._device.name)
        roof = measure_device_roof(pool, self._device)
        points = list(itertools.product(self._shapes, self._job["batches"]))
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
        """Check all cases at one shape and batch, then time them in turns in random order."""
        prepared = {}
        for index, case in enumerate(self._cases):
            cause = self._why_not(case, shape, batch)
            error = None
            if cause is None:
                copies = -(-self._cold_bytes // case.weight_bytes(shape))
                part = pool.part(index * pool.size_bytes // len(self._cases))
                try:
                    kernel = case.prepare(shape, copies, part)
                    error = self._error(case, kernel, shape, batch)
                # Lack of memory or a kernel that does not compile is a result like any other.
                except Exception as failed:
                    cause = f"failed: {type(failed).__name__}: {failed}".splitlines()[0]
                else:
                    if error <= case.allowed_error:
                        prepared[case.name] = (case, kernel, copies)
                    else:
                        cause = (
                            f"wrong: relative error {error:.2g}, at most "
                            f"{case.allowed_error:.2g} is allowed"
                        )
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

    def _error(self, case: Any, kernel: Any, shape: Any, batch: int) -> float:
        """Return the relative error of a kernel's first and last rows."""
        x = self._make_activations(shape, batch).to(getattr(self._torch, case.check_dtype))
        y = kernel.run(x.to(self._device.name), 0).double().cpu()
        n = shape.out_features
        wrong = norm = 0.0
        for start in sorted({0, max(0, n - n % CHECKED_ROWS - CHECKED_ROWS)}):
            end = min(CHECKED_ROWS, n) if start == 0 else n
            rows = slice(start, end)
            expected = x.double() @ self._torch.from_numpy(kernel.reference(rows)).T
            wrong += float((y[:, rows] - expected).square().sum())
            norm += float(expected.square().sum())
        return float((wrong / norm) ** 0.5)

    def _make_activations(self, shape: Any, batch: int) -> Any:
        generator = self._torch.Generator().manual_seed(self._job["seed"])
        return self._torch.randn((batch, shape.in_features), generator=generator).bfloat16()

    def _times(self, prepared: Json, shape: Any, batch: int) -> dict[str, list[float]]:
        """Return the seconds per round of each case. A round runs each case once.

        The first round is a warm-up and does not count.
        """
        inputs = {}
        for name, (case, kernel, _) in prepared.items():
            dtype = getattr(self._torch, case.dtype)
            inputs[name] = self._make_activations(shape, batch).to(
                device=self._device.name, dtype=dtype
            )
            kernel.run(inputs[name], 0)  # may compile for this type of activations
        seconds: dict[str, list[float]] = {name: [] for name in prepared}
        order = list(prepared)
        start = time.perf_counter()
        gc.disable()
        try:
            for turn in range(self._job["most_rounds"] + 1):
                self._rng.shuffle(order)
                for name in order:
                    _, kernel, copies = prepared[name]
                    work = partial(kernel.run, inputs[name], turn % copies)
                    seconds[name].append(self._device.seconds(work))
                elapsed_s = time.perf_counter() - start
                if turn >= self._job["least_rounds"] and elapsed_s > self._job["point_seconds"]:
                    break
        finally:
            gc.enable()
        return {name: values[1:] for name, values in seconds.items()}


if __name__ == "__main__":
    sys.exit(run_as_job_worker(sys.argv[1], _run_kernel_bench))

"""What the worker of the kernel bench does with a case that cannot be run."""

import runpy
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import bitbench.kernels
from bitbench.core.base import Json
from bitbench.kernels.case import Pool, Shape, Traits

WORKER = Path(bitbench.kernels.__file__).parent / "workers" / "kernel_worker.py"


@dataclass(frozen=True)
class DoesNotCompile(Traits):
    def weight_bytes(self, shape: Shape) -> int:
        return shape.in_features * shape.out_features

    def why_not(self, shape: Shape) -> None:
        pass

    def prepare(self, shape: Shape, copies: int, pool: Pool) -> NoReturn:
        raise RuntimeError("no image for this device\nand more")


def test_a_case_that_fails_is_a_result_and_ends_nothing() -> None:
    bench = object.__new__(runpy.run_path(str(WORKER))["Bench"])
    sent: list[tuple[str, Json]] = []
    bench._job, bench._cold_bytes, bench._cases = {"warm": True}, 1, [DoesNotCompile("broken", allowed_error=0.01)]
    bench._device = SimpleNamespace(name="cpu")
    bench._reports = SimpleNamespace(send=lambda event, **fields: sent.append((event, fields)))
    bench._times = lambda prepared, *_: {name: [1.0] for name in prepared}
    bench._point(Shape(8, 8), 1, SimpleNamespace(size_bytes=64, threads=1))
    (case, told), (point, timed) = sent
    assert (case, told["cause"]) == ("case", "failed: RuntimeError: no image for this device")
    assert (point, timed["seconds"]) == ("point", {})

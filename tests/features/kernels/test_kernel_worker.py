"""What the worker of the kernel bench does with a case that cannot be run."""

import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import bitbench.features.kernels
from bitbench.features.kernels.case import Case, KernelShape, WeightPool
from bitbench.study.base import Json

WORKER = Path(bitbench.features.kernels.__file__).parent / "workers" / "kernel_worker.py"


@dataclass(frozen=True)
class DoesNotCompile(Case):
    def weight_bytes(self, shape: KernelShape) -> int:
        return shape.in_features * shape.out_features

    def why_not(self, shape: KernelShape) -> None:
        pass

    def prepare(self, shape: KernelShape, copies: int, pool: WeightPool) -> NoReturn:
        raise RuntimeError("no image for this device\nand more")


def test_what_the_worker_imports_of_bitbench_needs_no_package_but_numpy() -> None:
    package = WORKER.parents[3]
    modules = ", ".join(f"bitbench.features.kernels.{name}" for name in ("case", "device"))
    script = (
        "import sys; from unittest.mock import MagicMock\n"
        "sys.modules['numpy'] = sys.modules['numpy.typing'] = MagicMock()\n"
        f"sys.path.append({str(package / 'util' / 'isolated')!r})\n"
        f"from bitbench_package import make_importable; make_importable()\nimport {modules}"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", script], check=True)


def test_a_case_that_fails_is_a_result_and_ends_nothing() -> None:
    bench = object.__new__(runpy.run_path(str(WORKER))["KernelBench"])
    sent: list[tuple[str, Json]] = []
    bench._job, bench._cold_bytes, bench._cases = (
        {},
        1,
        [DoesNotCompile("broken", allowed_error=0.01)],
    )
    bench._device = SimpleNamespace(name="cpu")
    bench._reports = SimpleNamespace(send=lambda event, **fields: sent.append((event, fields)))
    bench._times = lambda prepared, *_: {name: [1.0] for name in prepared}
    bench._point(KernelShape(8, 8), 1, SimpleNamespace(size_bytes=64, part=lambda _: None))
    (case, told), (point, timed) = sent
    assert (case, told["cause"]) == ("case", "failed: RuntimeError: no image for this device")
    assert (point, timed["seconds"]) == ("point", {})

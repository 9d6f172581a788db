"""What the worker of the kernel bench does with a case that cannot be run."""

import runpy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

import bitbench.features.kernels
from bitbench.features.kernels.case import KernelShape, Traits, WeightPool
from bitbench.study.base import Json

WORKER = Path(bitbench.features.kernels.__file__).parent / "workers" / "kernel_worker.py"


@dataclass(frozen=True)
class DoesNotCompile(Traits):
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
    bench._job, bench._cold_bytes, bench._cases = {}, 1, [DoesNotCompile("broken", allowed_error=0.01)]
    bench._device = SimpleNamespace(name="cpu")
    bench._reports = SimpleNamespace(send=lambda event, **fields: sent.append((event, fields)))
    bench._times = lambda prepared, *_: {name: [1.0] for name in prepared}
    bench._point(KernelShape(8, 8), 1, SimpleNamespace(size_bytes=64, threads=1))
    (case, told), (point, timed) = sent
    assert (case, told["cause"]) == ("case", "failed: RuntimeError: no image for this device")
    assert (point, timed["seconds"]) == ("point", {})


@pytest.fixture
def importing(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A bench that has only to import cases; one package of three cannot be imported."""
    packages = {"fine_cases": "Case = str\n", "bad_cases": "raise OSError('no driver')\n"}
    for name, code in packages.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(code)
    bench = object.__new__(runpy.run_path(str(WORKER))["KernelBench"])
    sent: list[tuple[str, Json]] = []
    bench._reports = SimpleNamespace(send=lambda event, **fields: sent.append((event, fields)))
    bench._job = {
        "cases": [["bad_cases", "Case"], ["bad_cases", "Other"], ["fine_cases", "Case"], ["fine_cases", "Missing"]],
        "packages": {name: str(tmp_path / name) for name in packages},
        "all_cases": False,
    }
    yield SimpleNamespace(bench=bench, sent=sent)
    for name in packages:
        sys.modules.pop(name, None)


def test_a_case_that_cannot_be_imported_is_told_and_the_others_go_on(importing: SimpleNamespace) -> None:
    assert list(importing.bench._importable()) == [""]
    assert importing.sent == [
        ("unusable", {"case": 0, "cause": "OSError: no driver"}),
        ("unusable", {"case": 1, "cause": "OSError: no driver"}),
        ("unusable", {"case": 3, "cause": "KeyError: 'Missing'"}),
    ]


def test_a_case_that_was_asked_for_and_cannot_be_imported_is_an_error(importing: SimpleNamespace) -> None:
    importing.bench._job["all_cases"] = True
    with pytest.raises(OSError, match="no driver"):
        list(importing.bench._importable())

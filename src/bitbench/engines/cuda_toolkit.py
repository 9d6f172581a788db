"""The compiler that comes with an environment's packages, for engines that compile kernels when they start. *Not yet
run on a GPU.*

An engine is started by the path of its interpreter, so what lies beside it (`ninja`, `nvcc`) is found only where PATH
and CUDA_HOME say so. Without them vLLM goes on without FlashInfer, and measures other kernels.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from bitbench.study.environment import OnStep

_PACKAGED = "lib/python3*/site-packages/nvidia/cu*"
_INSTALLED = Path("/usr/local/cuda")  # where NVIDIA's own packages put a toolkit
_RUNTIME = "libcudart.so"


def complete_toolkit(environment: Path, log_file: Path, *, cuda: bool, on_step: OnStep) -> None:  # noqa: ARG001
    """After the packages are installed: gives the packaged toolkit the names that compilers link with (`lib64`, a
    library without its version), which its wheels leave out."""
    toolkit = packaged_toolkit(environment) if cuda else None
    if toolkit is None:
        return
    on_step("completing its CUDA toolkit")
    _link(toolkit / "lib64", "lib")
    newest = sorted((toolkit / "lib").glob(f"{_RUNTIME}.*"), key=lambda path: len(path.name))
    if newest:
        _link(toolkit / "lib" / _RUNTIME, newest[0].name)


def packaged_toolkit(environment: Path) -> Path | None:
    return next((path.parents[1] for path in sorted(environment.glob(f"{_PACKAGED}/bin/nvcc"))), None)


def toolkit_variables(python: Path, ours: Mapping[str, str] = os.environ) -> dict[str, str]:
    """PATH with the environment's own programs first; CUDA_HOME where this machine has no toolkit of its own."""
    programs = python.parent
    variables = {"PATH": os.pathsep.join(filter(None, (str(programs), ours.get("PATH", os.defpath))))}
    has_own = (
        "CUDA_HOME" in ours or (_INSTALLED / "bin" / "nvcc").exists() or shutil.which("nvcc", path=ours.get("PATH"))
    )
    toolkit = None if has_own else packaged_toolkit(programs.parent)
    return variables if toolkit is None else {**variables, "CUDA_HOME": str(toolkit)}


def _link(path: Path, target: str) -> None:
    if not path.exists():
        path.symlink_to(target)

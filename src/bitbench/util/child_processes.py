"""The processes that bitbench starts: their variables, their commands, and messages over pipes.
No other module builds such a command.

There are three kinds of children. An engine has all of its settings in the study file. A tool or
a worker in another Python uses our proxies, caches and installer settings. The third kind is
bitbench itself in a second process.

`python -m` and `python -c` import from the working folder first. Other programs read settings
there (uv), or load files from it (llama.cpp). A folder that somebody sent must not be that
folder. So each child gets an explicit working folder, and a Python is also told not to import
from there.
"""

import os
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

# The only variables of ours that an engine gets. Others that change how it runs belong in the study
# file (`env:`), which is recorded.
_FOR_ENGINES = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
    "XDG_CACHE_HOME", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
)  # fmt: skip
# NVML, which lists the devices, orders them by their position on the bus. CUDA needs this setting.
_DEFAULTS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
# Variables that would lead another Python to our packages.
_OF_OUR_PYTHON = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
_NO_TOKEN_FROM_A_FILE = {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}


def collect_engine_variables(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ours that a process needs to run at all, and `extra`."""
    ours = {name: os.environ[name] for name in _FOR_ENGINES if name in os.environ}
    return _DEFAULTS | ours | dict(extra)


def collect_tool_variables(
    extra: Mapping[str, str] | None = None, *, hub_token: bool = False
) -> dict[str, str]:
    """Return our variables without the paths of our packages, and `extra`.

    Set `hub_token` only if the child needs the token of a model hub.
    """
    ours = _collect_ours(hub_token=hub_token)
    for name in _OF_OUR_PYTHON:
        ours.pop(name, None)
    return ours | dict(extra or {})


def collect_bitbench_variables() -> dict[str, str]:
    """Return the variables for bitbench's own interpreter and package, without tokens.

    Relative paths become absolute, for any working folder. The empty entry of a PYTHONPATH, which
    is the working folder, is removed.
    """
    ours = _collect_ours(hub_token=False)
    if home := ours.get("BITBENCH_HOME"):
        ours["BITBENCH_HOME"] = str(Path(home).expanduser().absolute())
    if python_path := ours.get("PYTHONPATH"):
        folders = [str(Path(entry).absolute()) for entry in python_path.split(os.pathsep) if entry]
        ours["PYTHONPATH"] = os.pathsep.join(folders)
    return ours


def _collect_ours(*, hub_token: bool) -> dict[str, str]:
    if hub_token:
        return dict(os.environ)
    ours = {name: value for name, value in os.environ.items() if not _is_hub_token(name)}
    return ours | _NO_TOKEN_FROM_A_FILE


def _is_hub_token(name: str) -> bool:
    """Return True for HF_TOKEN, HF_TOKEN_PATH, HUGGING_FACE_HUB_TOKEN and similar names."""
    return name.startswith(("HF_", "HUGGING")) and "TOKEN" in name


# A working folder for programs that use no relative paths. Only root can write there.
NOWHERE = Path("/")


def make_isolated_command(python: Path | str, *words: Path | str) -> list[str]:
    """Return the command for any environment's Python, which sees only its own packages."""
    return [str(python), "-I", *map(str, words)]


def make_bitbench_command(module: str, *words: str) -> list[str]:
    """Return the command for a module of bitbench in the current Python, which uses PYTHONPATH."""
    return [sys.executable, "-P", "-m", module, *words]


_LENGTH = struct.Struct("<Q")


def write_child_frame(pipe: IO[bytes], payload: bytes) -> None:
    """Write a payload with its length before it."""
    rest = memoryview(_LENGTH.pack(len(payload)) + payload)
    while rest:
        rest = rest[pipe.write(rest) :]  # a pipe without a buffer may take less than all
    pipe.flush()


def read_child_frame(pipe: IO[bytes]) -> bytes:
    """Read the next frame. Raise EOFError if the other side is gone."""
    (length,) = _LENGTH.unpack(_read_exactly(pipe, _LENGTH.size))
    return _read_exactly(pipe, length)


def _read_exactly(pipe: IO[bytes], count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        some = pipe.read(count - len(data))
        if not some:
            raise EOFError
        data += some
    return bytes(data)

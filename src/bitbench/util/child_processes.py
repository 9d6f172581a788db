"""Processes that bitbench starts: which variables each gets, how a Python is called and where, and messages over its
pipes. No other place decides it, or spells such a command.

Three kinds of children: an engine, whose every setting belongs in the study file; a tool or a worker in another
Python, for which our proxies, caches and installer settings count; and bitbench itself in a second process.

`python -m` and `python -c` import from the folder they are started in before they look anywhere else, and other
programs read settings there (uv) or load what lies there (llama.cpp). A folder that somebody was sent must be no such
place: each child gets a working folder by name, and a Python is told besides not to look there.
"""

import os
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

# All that an engine gets of ours. Whatever else changes how it runs belongs in the study file (`env:`), where it is
# recorded.
_FOR_ENGINES = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "XDG_CACHE_HOME",
    "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
)  # fmt: skip
# NVML, which says what devices there are, counts them by their place on the bus; CUDA does so only where it is told.
_DEFAULTS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
# They would lead another Python to our packages.
_OF_OUR_PYTHON = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
_NO_TOKEN_FROM_A_FILE = {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}


def engine_child_variables(extra: Mapping[str, str]) -> dict[str, str]:
    """What a process needs of ours to run at all, and `extra`."""
    return (
        _DEFAULTS
        | {name: os.environ[name] for name in _FOR_ENGINES if name in os.environ}
        | dict(extra)
    )


def tool_child_variables(
    extra: Mapping[str, str] | None = None, *, hub_token: bool = False
) -> dict[str, str]:
    """Ours without what leads to our packages, and `extra`; a model hub's token only where the child needs the hub."""
    kept = {
        name: value
        for name, value in _ours(hub_token=hub_token).items()
        if name not in _OF_OUR_PYTHON
    }
    return kept | dict(extra or {})


def bitbench_child_variables() -> dict[str, str]:
    """For bitbench's own interpreter and package: what leads to them stays, a token does not.

    It leads there from any working folder; the empty entry of a PYTHONPATH, which is that folder, leads nowhere.
    """
    ours = _ours(hub_token=False)
    if home := ours.get("BITBENCH_HOME"):
        ours["BITBENCH_HOME"] = str(Path(home).expanduser().absolute())
    if entries := ours.get("PYTHONPATH"):
        ours["PYTHONPATH"] = os.pathsep.join(
            str(Path(entry).absolute()) for entry in entries.split(os.pathsep) if entry
        )
    return ours


def _ours(*, hub_token: bool) -> dict[str, str]:
    if hub_token:
        return dict(os.environ)
    return {
        name: value for name, value in os.environ.items() if not _is_hub_token(name)
    } | _NO_TOKEN_FROM_A_FILE


def _is_hub_token(name: str) -> bool:
    """HF_TOKEN, HF_TOKEN_PATH, HUGGING_FACE_HUB_TOKEN, HUGGINGFACEHUB_API_TOKEN and their like."""
    return name.startswith(("HF_", "HUGGING")) and "TOKEN" in name


NOWHERE = Path(
    "/"
)  # a working folder for what reads and writes nothing by a relative path; root alone writes there


def isolated_command(python: Path | str, *words: Path | str) -> list[str]:
    """For the Python of any environment: it sees its own packages, and no variable or folder of ours."""
    return [str(python), "-I", *map(str, words)]


def bitbench_command(module: str, *words: str) -> list[str]:
    """For a module of bitbench in the Python that runs it now, with PYTHONPATH, which may lead to its packages."""
    return [sys.executable, "-P", "-m", module, *words]


_LENGTH = struct.Struct("<Q")


def write_child_frame(pipe: IO[bytes], payload: bytes) -> None:
    rest = memoryview(_LENGTH.pack(len(payload)) + payload)
    while rest:
        rest = rest[pipe.write(rest) :]  # a pipe without a buffer may take less than all
    pipe.flush()


def read_child_frame(pipe: IO[bytes]) -> bytes:
    """The next frame; raises EOFError when the other side is gone, also in the middle of one."""
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

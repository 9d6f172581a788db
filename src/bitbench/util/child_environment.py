"""Which of our environment variables a process gets that bitbench starts. No other place decides it.

Three kinds of children: an engine, whose every setting belongs in the study file; a tool or a worker in another Python,
for which our proxies, caches and installer settings count; and bitbench itself in a second process.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

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
# With these a program loads, or starts, whatever lies where they point.
_RUNS_CODE = re.compile(
    r"(LD|DYLD|PYTHON|PERL|PERL5|RUBY|NODE|JAVA|BASH|NVCC)_?[A-Z_]+"
    r"|PATH|HOME|IFS|ENV|PS4|SHELL|CC|CXX|CFLAGS|CXXFLAGS|LDFLAGS|CUDA_HOME|TMPDIR|XDG_CACHE_HOME"
    r"|CUDA_INJECTION64_PATH|GCONV_PATH|GGML_BACKEND_PATH|HF_HOME|HF_MODULES_CACHE|OPENSSL_(CONF|ENGINES|MODULES)"
    r"|(TORCHINDUCTOR|TRITON)_CACHE_DIR|TORCH_EXTENSIONS_DIR|VLLM_PLUGINS"
)
_NO_TOKEN_FROM_A_FILE = {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}


def runs_code(variable: str) -> bool:
    """Whether this variable can make a child run code of somebody else's choice."""
    return _RUNS_CODE.fullmatch(variable) is not None


def engine_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """What a process needs of ours to run at all, and `extra`."""
    return _DEFAULTS | {name: os.environ[name] for name in _FOR_ENGINES if name in os.environ} | dict(extra)


def tool_environment(extra: Mapping[str, str] | None = None, *, hub_token: bool = False) -> dict[str, str]:
    """Ours without what leads to our packages, and `extra`; a model hub's token only where the child needs the hub."""
    kept = {name: value for name, value in _ours(hub_token=hub_token).items() if name not in _OF_OUR_PYTHON}
    return kept | dict(extra or {})


def bitbench_environment() -> dict[str, str]:
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
    return {name: value for name, value in os.environ.items() if not _is_hub_token(name)} | _NO_TOKEN_FROM_A_FILE


def _is_hub_token(name: str) -> bool:
    """HF_TOKEN, HF_TOKEN_PATH, HUGGING_FACE_HUB_TOKEN, HUGGINGFACEHUB_API_TOKEN and their like."""
    return name.startswith(("HF_", "HUGGING")) and "TOKEN" in name

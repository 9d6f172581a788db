"""Kernels of engines: the compiler they need at start, vLLM's choices, and speed warnings."""

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from bitbench.records.trial import KernelChoice, KernelPath
from bitbench.study.environment import Device
from bitbench.util.text import format_printable

# Phrases from the sources of vLLM 0.32. SGLang copied the first of them. Not yet seen on a GPU.
_SLOWER = re.compile(
    r"[Pp]erformance might be sub-?optimal|not fully optimized|may degrade performance"
    r"|(?:may be|is) slower than (?:a )?native|slow and unoptimized"
    r"|[Ff]all(?:ing|s)? ?back to .*(?:kernel|torch linear|backend|[Tt]riton|dispatch|path)"
    r"|[Cc]ustom allreduce is disabled"
)
# The folder of a file that a message names: it says nothing on another machine.
_FOLDER = re.compile(r"(?:/[^/\s,\[\]']+)+/(?=[^/\s])")
_MOST_WARNINGS = 5
_LONGEST_WARNING = 300  # characters


def list_slowness_warnings(messages: Iterable[str]) -> tuple[str, ...]:
    """Return each warning about low speed once, in order, with file names but no folders."""
    slow = filter(_SLOWER.search, messages)
    warnings = dict.fromkeys(_FOLDER.sub("", format_printable(message.strip())) for message in slow)
    shortened = (warning[:_LONGEST_WARNING].rstrip(".") for warning in warnings)
    return tuple(shortened)[:_MOST_WARNINGS]


def find_log_match(pattern: re.Pattern[str], messages: Iterable[str]) -> str | None:
    """Return the first group that matched in the first message that matches, or None.

    Without a group, return the whole match.
    """
    for match in filter(None, map(pattern.search, messages)):
        return next((group for group in match.groups() if group), match[0]).strip()
    return None


# Lines from the source of vLLM 0.32, and as its selection prints them for each compute capability.
# Not yet run on a GPU.
_CHOSEN = re.compile(r"^(?:Selected|Using) (\w*Kernel) for (.+?)\.?$")
_ATTENTION = re.compile(r"^Using (?:AttentionBackendEnum\.)?(\w+) (?:attention )?backend\b")
_EXPERTS = re.compile(r"^Using '?(\w+)'? ([\w ]+) MoE backend\b")
NOT_QUANTIZED = re.compile(r"V1 LLM engine .*\bdtype=torch\.(\w+),.*\bquantization=None\b")
# Printed for any scheme with mixed types. The scheme itself then prints the line with its name.
_GENERIC = "mixed-precision linear"
# By the name of the kernel's class. The first match counts. Marlin and Humming expand any weights
# in registers, except Humming with a scheme that rounds activations (`_ROUNDS`).
_PATHS = (
    (re.compile(r"Emulation"), KernelPath.DEQUANTIZED),
    (
        re.compile(r"Marlin|Machete|Humming|Exllama|Conch|AllSpark|TritonW4A16|W[48N]A16|wNa16"),
        KernelPath.WEIGHT_ONLY,
    ),
    (re.compile(r"Int8ScaledMM|W[48]A8|Dynamic4bit"), KernelPath.QUANTIZED),
    (
        re.compile(r"(Cutlass|FlashInfer|DeepGemm|Torch|Triton|Aiter|ROCm|Fbgemm)\w*(FP8|Fp8)"),
        KernelPath.QUANTIZED,
    ),
    (
        re.compile(r"(Cutlass|FlashInfer|Torch|Fbgemm|B12x)\w*(NvFp4|MxFp4|Mxfp8|MxFp8)|^B12x"),
        KernelPath.QUANTIZED,
    ),
)
_ROUNDS = re.compile(r"W4A8")  # a scheme for which Humming computes with rounded activations


def read_choices(messages: Sequence[str]) -> tuple[KernelChoice, ...]:
    """Return one choice per kind of layers. Without quantized layers vLLM prints only the type."""
    chosen = _list_pairs(_CHOSEN, messages)
    specific = {kernel for kind, kernel in chosen if kind != _GENERIC}
    linear = [
        KernelChoice(kind=kind, kernel=kernel, path=classify_kernel(kernel, kind), source="log")
        for kind, kernel in chosen
        if kind != _GENERIC or kernel not in specific
    ]
    if not linear and (dense := find_log_match(NOT_QUANTIZED, messages)):
        path = KernelPath.DENSE
        linear = [KernelChoice(kind="linear", kernel=f"dense {dense}", path=path, source="log")]
    choices = [*linear, *_iter_expert_choices(messages)]
    if attention := find_log_match(_ATTENTION, messages):
        choices.insert(0, KernelChoice(kind="attention", kernel=attention, source="log"))
    return tuple(choices)


def _list_pairs(pattern: re.Pattern[str], messages: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pattern's second and first group of each message that matches, once, in order."""
    matches = filter(None, map(pattern.match, messages))
    return list(dict.fromkeys((match[2], match[1]) for match in matches))


def _iter_expert_choices(messages: Sequence[str]) -> Iterator[KernelChoice]:
    """Yield the kernels of a mixture's experts: `Using TRITON Unquantized MoE backend out of …`.

    The names are vLLM's own and do not tell the path of quantized experts.
    """
    for scheme, backend in _list_pairs(_EXPERTS, messages):
        path = KernelPath.DENSE if scheme == "Unquantized" else None
        yield KernelChoice(kind=f"experts, {scheme}", kernel=backend, path=path, source="log")


def classify_kernel(kernel: str, kind: str = "") -> KernelPath | None:
    """Return how a kernel computes, or None if that is unknown.

    `kind` is the kind of layers, since a class may compute differently for two schemes.
    """
    if kernel.startswith("Humming") and _ROUNDS.search(kind):
        return KernelPath.QUANTIZED
    return next((path for pattern, path in _PATHS if pattern.search(kernel)), None)


_PACKAGED = "lib/python3*/site-packages/nvidia/cu*"
_INSTALLED = Path("/usr/local/cuda")  # the folder that NVIDIA's packages install a toolkit in
_RUNTIME = "libcudart.so"


def complete_toolkit(environment: Path, log_file: Path, *, device: Device) -> None:  # noqa: ARG001
    """Add the names that compilers link with to the packaged toolkit, once it is installed.

    Its wheels leave out `lib64` and the library without a version.
    """
    toolkit = _find_packaged_toolkit(environment) if device == "cuda" else None
    if toolkit is None:
        return
    _add_link(toolkit / "lib64", "lib")
    newest = sorted((toolkit / "lib").glob(f"{_RUNTIME}.*"), key=lambda path: len(path.name))
    if newest:
        _add_link(toolkit / "lib" / _RUNTIME, newest[0].name)


def _find_packaged_toolkit(environment: Path) -> Path | None:
    compilers = sorted(environment.glob(f"{_PACKAGED}/bin/nvcc"))
    return compilers[0].parents[1] if compilers else None


def make_toolkit_variables(
    python: Path, machine_variables: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return PATH with the environment's programs first, and CUDA_HOME if the machine has none.

    An engine is started by its interpreter's path, so it finds the programs next to it (`ninja`,
    `nvcc`) only by these variables. Otherwise vLLM runs without FlashInfer and measures other
    kernels.
    """
    programs = python.parent
    folders = (str(programs), machine_variables.get("PATH", os.defpath))
    variables = {"PATH": os.pathsep.join(filter(None, folders))}
    has_own = (
        "CUDA_HOME" in machine_variables
        or (_INSTALLED / "bin" / "nvcc").exists()
        or shutil.which("nvcc", path=machine_variables.get("PATH"))
    )
    if not has_own and (toolkit := _find_packaged_toolkit(programs.parent)) is not None:
        variables["CUDA_HOME"] = str(toolkit)
    return variables


def _add_link(path: Path, target: str) -> None:
    if not path.exists():
        path.symlink_to(target)

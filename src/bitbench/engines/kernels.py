"""Kernels of engines: the compiler they need at start, which ones vLLM says that it chose, and what engines say
against their own speed."""

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bitbench.records.trial import KernelChoice, KernelPath
from bitbench.study.environment import Device
from bitbench.util.text import printable

# Phrases as in the sources of vLLM 0.32; SGLang took over the first of them. Not yet seen on a GPU.
_SLOWER = re.compile(
    r"[Pp]erformance might be sub-?optimal|not fully optimized|may degrade performance"
    r"|(?:may be|is) slower than (?:a )?native|slow and unoptimized"
    r"|[Ff]all(?:ing|s)? ?back to .*(?:kernel|torch linear|backend|[Tt]riton|dispatch|path)"
    r"|[Cc]ustom allreduce is disabled"
)
_FOLDER = re.compile(
    r"(?:/[^/\s,\[\]']+)+/(?=[^/\s])"
)  # of a file that it names: says nothing elsewhere
_MOST, _LONGEST = 5, 300


def slowness_warnings(messages: Iterable[str]) -> tuple[str, ...]:
    """Each once, in their order, with the names of files and not their folders."""
    found = (
        _FOLDER.sub("", printable(message.strip()))
        for message in messages
        if _SLOWER.search(message)
    )
    return tuple(warning[:_LONGEST].rstrip(".") for warning in dict.fromkeys(found))[:_MOST]


def first_log_match(pattern: re.Pattern[str], messages: Iterable[str]) -> str | None:
    """The first group that matched in the first message that does; the whole match where there is no group."""
    for found in filter(None, map(pattern.search, messages)):
        return next((group for group in found.groups() if group), found[0]).strip()
    return None


# Lines as in the source of vLLM 0.32, and as its own selection prints them for each compute capability; not yet run on
# a GPU.
_CHOSEN = re.compile(r"^(?:Selected|Using) (\w*Kernel) for (.+?)\.?$")
_ATTENTION = re.compile(r"^Using (?:AttentionBackendEnum\.)?(\w+) (?:attention )?backend\b")
_EXPERTS = re.compile(r"^Using '?(\w+)'? ([\w ]+) MoE backend\b")
NOT_QUANTIZED = re.compile(r"V1 LLM engine .*\bdtype=torch\.(\w+),.*\bquantization=None\b")
# Said of any scheme with mixed types; the scheme itself says it again with its name.
_GENERIC = "mixed-precision linear"
# By the name of the kernel's class, the first that fits. Marlin and Humming expand their weights in registers, whatever
# they are, but for Humming with a scheme that rounds activations (`_ROUNDS`).
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
_ROUNDS = re.compile(r"W4A8")  # a scheme of which Humming computes with rounded activations


def read_choices(messages: Sequence[str]) -> tuple[KernelChoice, ...]:
    """Each kind of layers once. Of a model without quantized layers vLLM says only that."""
    chosen = dict.fromkeys(
        (found[2], found[1]) for found in filter(None, map(_CHOSEN.match, messages))
    )
    named = {kernel for kind, kernel in chosen if kind != _GENERIC}
    linear = [
        KernelChoice(kind=kind, kernel=kernel, path=kernel_path(kernel, kind), source="log")
        for kind, kernel in chosen
        if kind != _GENERIC or kernel not in named
    ]
    if not linear and (dense := first_log_match(NOT_QUANTIZED, messages)):
        linear = [
            KernelChoice(
                kind="linear", kernel=f"dense {dense}", path=KernelPath.DENSE, source="log"
            )
        ]
    attention = first_log_match(_ATTENTION, messages)
    return (
        *([KernelChoice(kind="attention", kernel=attention, source="log")] if attention else []),
        *linear,
        *_experts(messages),
    )


def _experts(messages: Sequence[str]) -> list[KernelChoice]:
    """Of a mixture: `Using TRITON Unquantized MoE backend out of …`. The names are vLLM's own, and say no path."""
    chosen = dict.fromkeys(
        (found[2], found[1]) for found in filter(None, map(_EXPERTS.match, messages))
    )
    return [
        KernelChoice(
            kind=f"experts, {scheme}",
            kernel=backend,
            path=KernelPath.DENSE if scheme == "Unquantized" else None,
            source="log",
        )
        for scheme, backend in chosen
    ]


def kernel_path(kernel: str, kind: str = "") -> KernelPath | None:
    """None where it is not known. `kind`: the layers, since one class may compute differently for two schemes."""
    if kernel.startswith("Humming") and _ROUNDS.search(kind):
        return KernelPath.QUANTIZED
    return next((path for pattern, path in _PATHS if pattern.search(kernel)), None)


_PACKAGED = "lib/python3*/site-packages/nvidia/cu*"
_INSTALLED = Path("/usr/local/cuda")  # where NVIDIA's own packages put a toolkit
_RUNTIME = "libcudart.so"


def complete_toolkit(environment: Path, log_file: Path, *, device: Device) -> None:  # noqa: ARG001
    """After the packages are installed: gives the packaged toolkit the names that compilers link with (`lib64`, a
    library without its version), which its wheels leave out."""
    toolkit = _packaged_toolkit(environment) if device == "cuda" else None
    if toolkit is None:
        return
    _link(toolkit / "lib64", "lib")
    newest = sorted((toolkit / "lib").glob(f"{_RUNTIME}.*"), key=lambda path: len(path.name))
    if newest:
        _link(toolkit / "lib" / _RUNTIME, newest[0].name)


def _packaged_toolkit(environment: Path) -> Path | None:
    return next(
        (path.parents[1] for path in sorted(environment.glob(f"{_PACKAGED}/bin/nvcc"))), None
    )


def toolkit_variables(python: Path, ours: Mapping[str, str] = os.environ) -> dict[str, str]:
    """PATH with the environment's own programs first; CUDA_HOME where this machine has no toolkit of its own.

    An engine is started by the path of its interpreter, so what lies beside it (`ninja`, `nvcc`) is found only where
    these say so. Without them vLLM goes on without FlashInfer, and measures other kernels.
    """
    programs = python.parent
    variables = {
        "PATH": os.pathsep.join(filter(None, (str(programs), ours.get("PATH", os.defpath))))
    }
    has_own = (
        "CUDA_HOME" in ours
        or (_INSTALLED / "bin" / "nvcc").exists()
        or shutil.which("nvcc", path=ours.get("PATH"))
    )
    toolkit = None if has_own else _packaged_toolkit(programs.parent)
    return variables if toolkit is None else {**variables, "CUDA_HOME": str(toolkit)}


def _link(path: Path, target: str) -> None:
    if not path.exists():
        path.symlink_to(target)

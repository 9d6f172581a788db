"""Which kernels vLLM chose, from what it says in its log. Lines as in the source of 0.32; those of kernels for GPUs are
not yet run on a GPU."""

import re
from collections.abc import Iterable, Sequence

from bitbench.core.recorded.trial import KernelChoice, KernelPath

_CHOSEN = re.compile(r"^(?:Selected|Using) (\w*Kernel) for (.+?)\.?$")
_ATTENTION = re.compile(r"^Using (\S+) (?:attention )?backend\b")
_NOT_QUANTIZED = re.compile(r"V1 LLM engine .*\bdtype=torch\.(\w+),.*\bquantization=None\b")
# Said of any scheme with mixed types; the scheme itself says it again with its name.
_GENERIC = "mixed-precision linear"
# By the name of the kernel's class, the first that fits. Marlin expands its weights in registers, whatever they are.
_PATHS = (
    (re.compile(r"Emulation"), KernelPath.DEQUANTIZED),
    (re.compile(r"Marlin|Machete|Exllama|Conch|AllSpark|W[48N]A16|wNa16|W8A16"), KernelPath.WEIGHT_ONLY),
    (re.compile(r"Int8ScaledMM|W[48]A8|Dynamic4bit"), KernelPath.QUANTIZED),
    (re.compile(r"(Cutlass|FlashInfer|DeepGemm|Torch|Triton|Aiter|ROCm)\w*(FP8|Fp8)"), KernelPath.QUANTIZED),
)


def read_choices(messages: Sequence[str]) -> tuple[KernelChoice, ...]:
    """Each kind of layers once. Of a model without quantized layers vLLM says only that."""
    chosen = dict.fromkeys((found[2], found[1]) for found in filter(None, map(_CHOSEN.match, messages)))
    named = {kernel for kind, kernel in chosen if kind != _GENERIC}
    linear = [
        KernelChoice(kind=kind, kernel=kernel, path=path_of(kernel), source="log")
        for kind, kernel in chosen
        if kind != _GENERIC or kernel not in named
    ]
    if not linear and (dense := _first(_NOT_QUANTIZED, messages)):
        linear = [KernelChoice(kind="linear", kernel=f"dense {dense}", path=KernelPath.DENSE, source="log")]
    attention = _first(_ATTENTION, messages)
    return (*([KernelChoice(kind="attention", kernel=attention, source="log")] if attention else []), *linear)


def path_of(kernel: str) -> KernelPath | None:
    return next((path for pattern, path in _PATHS if pattern.search(kernel)), None)


def _first(pattern: re.Pattern[str], messages: Iterable[str]) -> str | None:
    return next((found[1] for found in map(pattern.search, messages) if found), None)

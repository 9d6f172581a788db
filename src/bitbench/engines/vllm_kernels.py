"""Which kernels vLLM chose, from what it says in its log. Lines as in the source of 0.32, and as its own selection
prints them for each compute capability; not yet run on a GPU."""

import re
from collections.abc import Iterable, Sequence

from bitbench.records.trial import KernelChoice, KernelPath

_CHOSEN = re.compile(r"^(?:Selected|Using) (\w*Kernel) for (.+?)\.?$")
_ATTENTION = re.compile(r"^Using (?:AttentionBackendEnum\.)?(\w+) (?:attention )?backend\b")
_EXPERTS = re.compile(r"^Using '?(\w+)'? ([\w ]+) MoE backend\b")
_NOT_QUANTIZED = re.compile(r"V1 LLM engine .*\bdtype=torch\.(\w+),.*\bquantization=None\b")
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
    (re.compile(r"(Cutlass|FlashInfer|DeepGemm|Torch|Triton|Aiter|ROCm|Fbgemm)\w*(FP8|Fp8)"), KernelPath.QUANTIZED),
    (re.compile(r"(Cutlass|FlashInfer|Torch|Fbgemm|B12x)\w*(NvFp4|MxFp4|Mxfp8|MxFp8)|^B12x"), KernelPath.QUANTIZED),
)
_ROUNDS = re.compile(r"W4A8")  # a scheme of which Humming computes with rounded activations


def read_choices(messages: Sequence[str]) -> tuple[KernelChoice, ...]:
    """Each kind of layers once. Of a model without quantized layers vLLM says only that."""
    chosen = dict.fromkeys((found[2], found[1]) for found in filter(None, map(_CHOSEN.match, messages)))
    named = {kernel for kind, kernel in chosen if kind != _GENERIC}
    linear = [
        KernelChoice(kind=kind, kernel=kernel, path=path_of(kernel, kind), source="log")
        for kind, kernel in chosen
        if kind != _GENERIC or kernel not in named
    ]
    if not linear and (dense := _first(_NOT_QUANTIZED, messages)):
        linear = [KernelChoice(kind="linear", kernel=f"dense {dense}", path=KernelPath.DENSE, source="log")]
    attention = _first(_ATTENTION, messages)
    return (
        *([KernelChoice(kind="attention", kernel=attention, source="log")] if attention else []),
        *linear,
        *_experts(messages),
    )


def _experts(messages: Sequence[str]) -> list[KernelChoice]:
    """Of a mixture: `Using TRITON Unquantized MoE backend out of …`. The names are vLLM's own, and say no path."""
    chosen = dict.fromkeys((found[2], found[1]) for found in filter(None, map(_EXPERTS.match, messages)))
    return [
        KernelChoice(
            kind=f"experts, {scheme}",
            kernel=backend,
            path=KernelPath.DENSE if scheme == "Unquantized" else None,
            source="log",
        )
        for scheme, backend in chosen
    ]


def path_of(kernel: str, kind: str = "") -> KernelPath | None:
    """None where it is not known. `kind`: the layers, since one class may compute differently for two schemes."""
    if kernel.startswith("Humming") and _ROUNDS.search(kind):
        return KernelPath.QUANTIZED
    return next((path for pattern, path in _PATHS if pattern.search(kernel)), None)


def _first(pattern: re.Pattern[str], messages: Iterable[str]) -> str | None:
    return next((found[1] for found in map(pattern.search, messages) if found), None)

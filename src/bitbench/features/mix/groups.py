"""Which tensors of a GGUF file get a type together, and the recipe that says so."""

import re
from collections.abc import Mapping, Sequence

from bitbench.features.mix.types import TensorGroup
from bitbench.quantize.gguf_header import GgufTensor
from bitbench.study.recipe import Backend, Recipe, TensorRule
from bitbench.study.tensor_types import tensor_type
from bitbench.util.errors import RecipeError

# Matrices that read the same vector: engines fuse them, or compute them in one pass.
_FUSED = {
    **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_qkv"), "attn_qkv"),
    **dict.fromkeys(("ffn_gate", "ffn_up"), "ffn_gate_up"),
    **dict.fromkeys(("ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps"), "ffn_gate_up_exps"),
}
_IN_A_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
_OUTSIDE = re.compile(r"(token_embd|output)\.weight")
_LOOKED_UP, _LAST = "token_embd", "output"
_DENSE = ("bf16", "f16")  # as a converter writes what can be quantized; norms and routers are f32
# With it no tensor needs another type than was asked for: its blocks of 32 fit wherever any quantized type does.
_FILE_TYPE = "Q8_0"
_ANY, _REST = ".", "bf16"


def group_tensors(tensors: Sequence[GgufTensor], types: Sequence[str], bands: int) -> tuple[TensorGroup, ...]:
    """Kinds of tensors × bands of layers. Raises RecipeError for a group that no type fits."""
    found: dict[tuple[str, int], list[GgufTensor]] = {}
    layers = 1 + max((layer for tensor in tensors if (layer := _place(tensor)[1]) is not None), default=0)
    bands = min(bands, layers)
    for tensor in tensors:
        kind, layer = _place(tensor)
        if kind is not None:
            found.setdefault((kind, -1 if layer is None else layer * bands // layers), []).append(tensor)
    if not found:
        raise RecipeError("the model has no tensors that can be quantized; is it stored in bf16?")
    is_tied = all(kind != _LAST for kind, _ in found)
    return tuple(_group(kind, own, types, is_tied) for (kind, _), own in found.items())


def _place(tensor: GgufTensor) -> tuple[str | None, int | None]:
    """Kind and layer; no kind: its type is not chosen."""
    if tensor.type not in _DENSE or len(tensor.shape) < 2:
        return None, None
    if inside := _IN_A_LAYER.fullmatch(tensor.name):
        return _FUSED.get(inside[2], inside[2]), int(inside[1])
    outside = _OUTSIDE.fullmatch(tensor.name)
    return (outside[1] if outside else None), None


def _group(kind: str, tensors: Sequence[GgufTensor], types: Sequence[str], is_tied: bool) -> TensorGroup:
    fitting = [
        name for name in types if all(tensor.shape[0] % tensor_type(name).block_weights == 0 for tensor in tensors)
    ]
    if not fitting:
        raise RecipeError(
            f"no type fits {tensors[0].name}, whose rows have {tensors[0].shape[0]} weights; add q8_0 to the types"
        )
    layers = [layer for tensor in tensors if (layer := _place(tensor)[1]) is not None]
    return TensorGroup(
        kind=kind,
        first=min(layers, default=None),
        last=max(layers, default=None),
        tensors=tuple(tensor.name for tensor in tensors),
        weights=sum(tensor.weights for tensor in tensors),
        types=tuple(fitting),
        is_multiplied=kind != _LOOKED_UP or is_tied,
    )


def mixed_recipe(name: str, types: Mapping[TensorGroup, str], description: str = "") -> Recipe:
    """What has no type in it stays as it is in the unquantized model."""
    rules = [TensorRule(match=_pattern(group.tensors), type=type) for group, type in types.items()]
    return Recipe(
        name=name,
        description=description,
        backend=Backend.GGUF,
        options={"type": _FILE_TYPE},
        tensors=(*rules, TensorRule(match=_ANY, type=_REST)),
    )


def _pattern(names: Sequence[str]) -> str:
    """Exactly these: `^blk\\.(0|1)\\.(attn_q|attn_k)\\.weight$` where they are all combinations of layers and names."""
    parts = [_IN_A_LAYER.fullmatch(name) for name in names]
    inside = [(found[1], found[2]) for found in parts if found]
    layers, own = dict.fromkeys(layer for layer, _ in inside), dict.fromkeys(name for _, name in inside)
    if len(inside) == len(names) == len(layers) * len(own):
        return rf"^blk\.({'|'.join(layers)})\.({'|'.join(own)})\.weight$"
    return f"^({'|'.join(re.escape(name) for name in names)})$"


def wrong_types(tensors: Sequence[GgufTensor], types: Mapping[TensorGroup, str]) -> list[str]:
    """Tensors of a file that have another type than was asked for: `blk.0.attn_q.weight is q8_0, not q4_0`."""
    wanted = {name: type for group, type in types.items() for name in group.tensors}
    stored = {tensor.name: tensor.type for tensor in tensors}
    return [
        f"{name} is {stored.get(name, 'missing')}, not {type}"
        for name, type in wanted.items()
        if stored.get(name) != type
    ]

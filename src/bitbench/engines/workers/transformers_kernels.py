"""Which kernel each layer of a loaded model really runs on, from a walk over its modules.

Imported by path in the transformers environment; imports nothing of ours.
"""

from collections import Counter
from typing import Any

# Layers whose class says that they compute on packed weights, and how. Those of other packages than vptq are from
# their documentation: not yet run on a GPU.
_NATIVE_CLASSES = {
    "VQuantLinear": "weight_only",  # vptq: codebooks are looked up inside the product
    "WQLinear_GEMM": "weight_only",
    "WQLinear_GEMV": "weight_only",
    "Linear8bitLt": "quantized",
    "Linear4bit": "weight_only",
}


_VPTQ = "VptqLinear"  # bitbench.features.vptq.linear: with the native kernel it has no dense weight


def transformers_kernel_choices(model: Any) -> list[dict[str, Any]]:
    """As `records.trial.KernelChoice`: layers that are alike are one entry."""
    counts = Counter(_choice(module) for module in model.modules() if _is_linear(module))
    attention = {
        "kind": "attention",
        "kernel": str(model.config._attn_implementation),
        "layers": getattr(model.config, "num_hidden_layers", None),
        "path": None,
        "source": "modules",
    }
    linear = [
        {"kind": kind, "kernel": kernel, "layers": count, "path": path, "source": "modules"}
        for (kind, kernel, path), count in counts.items()
    ]
    return [attention, *linear]


def _is_linear(module: Any) -> bool:
    """torch's own, one that is derived from it, or a replacement of it that says how many features it has."""
    return hasattr(module, "in_features") and hasattr(module, "out_features")


def _choice(module: Any) -> tuple[str, str, str | None]:
    """Kind of layer, kernel, and path as `records.trial.KernelPath` spells it; None where it is unknown."""
    name, weight = type(module).__name__, getattr(module, "weight", None)
    if name == _VPTQ:
        return name, module.kind, "weight_only" if weight is None else "dequantized"
    if name in _NATIVE_CLASSES:
        return name, f"{type(module).__module__}.{name}", _NATIVE_CLASSES[name]
    if weight is None:
        return name, f"{type(module).__module__}.{name}", None
    if hasattr(weight, "__tensor_flatten__"):
        return _tensor_choice(weight)
    dense = f"dense {_short(weight.dtype)}"
    scheme = getattr(module, "quantization_scheme", None)  # compressed-tensors leaves it on a layer
    if scheme is not None:
        return _scheme_kind(scheme), f"dequantized to {dense}", "dequantized"
    return "linear", dense, "dense" if weight.dtype.is_floating_point else None


def _tensor_choice(weight: Any) -> tuple[str, str, str | None]:
    """A tensor of torchao. Rounded activations mean a product of integers; otherwise it goes by the weight's layout.

    Plain int8 weights are cast to the type of the activations before a dense product; packed ones have kernels.
    """
    stored = _short(transformers_kernel_tensors(weight)[0].dtype)
    rounds = getattr(weight, "act_quant_kwargs", None) is not None
    layout = getattr(weight, "_layout", None) or getattr(weight, "packing_format", None)
    arranged = f", {layout}" if layout is not None else ""
    kernel = f"{type(weight).__name__} ({stored}, activations {'rounded' if rounds else 'as they are'}{arranged})"
    if rounds:
        path = "quantized"
    else:
        path = (
            "dequantized"
            if stored == "int8" and "Plain" in f"{layout or 'Plain'}"
            else "weight_only"
        )
    return "torchao", kernel, path


def _scheme_kind(scheme: Any) -> str:
    weights, activations = scheme.weights, scheme.input_activations
    rounded = f"A{activations.num_bits}" if activations is not None else "A16"
    return (
        f"compressed-tensors W{weights.num_bits}{rounded}"
        if weights is not None
        else "compressed-tensors"
    )


def transformers_kernel_tensors(tensor: Any) -> list[Any]:
    """The plain tensors that a tensor of torchao consists of; a plain one consists of itself."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [part for name in names for part in transformers_kernel_tensors(getattr(tensor, name))]


def _short(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")

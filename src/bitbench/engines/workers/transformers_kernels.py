"""The kernel that each layer of a loaded model really runs on, from a walk over its modules.

Imported by path in the transformers environment. It imports nothing of ours.
"""

from collections import Counter
from typing import Any

# Classes of layers that compute on packed weights, with their path. Those of packages other than
# vptq follow the packages' documentation: not yet run on a GPU.
_NATIVE_CLASSES = {
    "VQuantLinear": "weight_only",  # vptq: codebooks are looked up inside the product
    "WQLinear_GEMM": "weight_only",
    "WQLinear_GEMV": "weight_only",
    "Linear8bitLt": "quantized",
    "Linear4bit": "weight_only",
}


_VPTQ = "VptqLinear"  # bitbench.features.vptq.linear: with the native kernel it has no dense weight


def transformers_kernel_choices(model: Any) -> list[dict[str, Any]]:
    """Return the fields of `records.trial.KernelChoice`, once for all layers that are alike."""
    counts = Counter(map(_classify_layer, filter(_is_linear, model.modules())))
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
    """Return True for torch's class, a derived one, or a replacement with a number of features."""
    return hasattr(module, "in_features") and hasattr(module, "out_features")


def _classify_layer(module: Any) -> tuple[str, str, str | None]:
    """Return kind of layer, kernel, and path as in `records.trial.KernelPath`, or None for it."""
    name = type(module).__name__
    weight = getattr(module, "weight", None)
    if name == _VPTQ:
        path = "weight_only" if weight is None else "dequantized"
        return name, module.kind, path
    if name in _NATIVE_CLASSES or weight is None:
        return name, f"{type(module).__module__}.{name}", _NATIVE_CLASSES.get(name)
    if hasattr(weight, "__tensor_flatten__"):
        return _classify_torchao_tensor(weight)
    dense = f"dense {_format_dtype(weight.dtype)}"
    # compressed-tensors leaves its scheme on a layer.
    scheme = getattr(module, "quantization_scheme", None)
    if scheme is not None:
        return _format_scheme_kind(scheme), f"dequantized to {dense}", "dequantized"
    is_float = weight.dtype.is_floating_point
    return ("linear", dense, "dense") if is_float else ("linear", dense, None)


def _classify_torchao_tensor(weight: Any) -> tuple[str, str, str | None]:
    """Return kind, kernel and path for a tensor of torchao.

    Rounded activations mean a product of integers. Otherwise the weight's layout decides: plain
    int8 weights are cast to the type of the activations before a dense product, and packed ones
    have kernels.
    """
    stored = _format_dtype(transformers_kernel_tensors(weight)[0].dtype)
    rounds = getattr(weight, "act_quant_kwargs", None) is not None
    activations = "rounded" if rounds else "as they are"
    layout = getattr(weight, "_layout", None) or getattr(weight, "packing_format", None)
    details = f"{stored}, activations {activations}"
    if layout is not None:
        details += f", {layout}"
    path = "weight_only"
    if rounds:
        path = "quantized"
    elif stored == "int8" and (not layout or "Plain" in f"{layout}"):
        path = "dequantized"
    return "torchao", f"{type(weight).__name__} ({details})", path


def _format_scheme_kind(scheme: Any) -> str:
    if scheme.weights is None:
        return "compressed-tensors"
    activations = scheme.input_activations
    activation_bits = activations.num_bits if activations is not None else 16
    return f"compressed-tensors W{scheme.weights.num_bits}A{activation_bits}"


def transformers_kernel_tensors(tensor: Any) -> list[Any]:
    """Return the plain tensors in a tensor of torchao, or a list of the tensor if it is plain."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    tensors = []
    for name in names:
        tensors += transformers_kernel_tensors(getattr(tensor, name))
    return tensors


def _format_dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")

"""What a model on the hub holds before it is downloaded: by the table of shapes, and by what its name promises."""

from bitbench.models.hub_reference import HubReference
from bitbench.models.quantized import Numbers, Quantization
from bitbench.models.shapes import Shape, published_shape

# How Qwen names its own quantized checkpoints, and others after it.
_PROMISED = {
    "-AWQ": Quantization("awq", Numbers(4), group_size=128),
    "-GPTQ-Int4": Quantization("gptq", Numbers(4), group_size=128),
    "-GPTQ-Int8": Quantization("gptq", Numbers(8), group_size=128),
    "-FP8": Quantization("fp8", Numbers(8, "float"), Numbers(8, "float"), block=(128, 128)),
}


def published_model(reference: HubReference) -> tuple[Shape, Quantization | None] | None:
    """Its shape, and how it is quantized if its name says that it is; None where the shape is not in the table."""
    if reference.file is not None:
        return None
    if (shape := published_shape(reference.repository)) is not None:
        return shape, None
    for ending, quantization in _PROMISED.items():
        base = published_shape(reference.repository.removesuffix(ending))
        if base is not None:
            return base, quantization
    return None

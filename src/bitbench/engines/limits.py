"""What a model cannot do on any engine."""

from bitbench.core.variant import Variant
from bitbench.core.workload import Workload

GGUF = "gguf"  # what `ModelFacts.quantization` calls llama.cpp's files


def refuse_long_context(variant: Variant, workload: Workload) -> str | None:
    """Why the workload does not fit into the model's context, or None."""
    limit = variant.facts.context_tokens
    if limit is None or workload.context_tokens <= limit:
        return None
    return (
        f"{workload.name} needs a context of {workload.context_tokens:,} tokens ({workload.input_tokens:,} in and "
        f"{workload.output_tokens:,} out), and {variant.model} was made for {limit:,}."
    )


def refuse_gguf(variant: Variant) -> str | None:
    """For an engine that reads Hugging Face checkpoints."""
    if variant.facts.quantization != GGUF:
        return None
    return f"{variant.name} is a GGUF file, which only llama.cpp runs as it is; measure it on the engine llamacpp."

"""What a model cannot do on any engine."""

from bitbench.core.variant import Variant
from bitbench.core.workload import Workload


def refuse_long_context(variant: Variant, workload: Workload) -> str | None:
    """Why the workload does not fit into the model's context, or None."""
    limit = variant.facts.context_tokens
    if limit is None or workload.context_tokens <= limit:
        return None
    return (
        f"{workload.name} needs a context of {workload.context_tokens:,} tokens ({workload.input_tokens:,} in and "
        f"{workload.output_tokens:,} out), and {variant.model} was made for {limit:,}."
    )

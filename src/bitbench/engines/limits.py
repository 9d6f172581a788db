"""What a model cannot do on any engine."""

from bitbench.core.asked.prompts import Api, show_length
from bitbench.core.asked.workload import Workload
from bitbench.core.recorded.variant import Variant


def refuse_long_context(variant: Variant, workload: Workload) -> str | None:
    """Why the workload does not fit into the model's context, or None."""
    limit = variant.facts.context_tokens
    if limit is None or workload.context_tokens <= limit:
        return None
    turns = "" if workload.turns == 1 else f", {workload.turns} times"
    return (
        f"{workload.name} needs a context of {workload.context_tokens:,} tokens "
        f"({show_length(workload.input_tokens)} in and {show_length(workload.output_tokens)} out{turns}), "
        f"but {variant.model} supports {limit:,}."
    )


def refuse_text(engine: str, workload: Workload) -> str | None:
    """Why a server that takes nothing but token ids cannot be asked this, or None."""
    if workload.text is None and workload.api is Api.COMPLETIONS:
        return None
    return f"{workload.name} sends text, but the {engine} engine takes only token ids; remove `text` and `api`."

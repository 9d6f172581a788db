"""What a model or a setup cannot do, alike on several engines."""

from bitbench.engines.options import spelled
from bitbench.study.prompts import Api, show_length
from bitbench.study.study import EngineSetup
from bitbench.study.variant import Variant
from bitbench.study.workload import Workload


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


def refuse_set_context(setup: EngineSetup, option: str, workload: Workload) -> str | None:
    """Why the workload does not fit into the context that the study's own argument sets, or None."""
    longest = spelled(setup.args).get(option)
    if not isinstance(longest, int) or workload.context_tokens <= longest:
        return None
    return (
        f"{workload.name} needs a context of {workload.context_tokens:,} tokens, but {option} of {setup.name} is "
        f"{longest:,}."
    )


def refuse_text(engine: str, workload: Workload) -> str | None:
    """Why a server that takes nothing but token ids cannot be asked this, or None."""
    if workload.text is None and workload.api is Api.COMPLETIONS:
        return None
    return f"{workload.name} sends text, but the {engine} engine takes only token ids; remove `text` and `api`."

"""Arguments of engines: how they are spelled, and checked, and what a model or a setup cannot do with a
workload."""

from collections.abc import Iterable, Mapping, Sequence

from pydantic import ValidationError

from bitbench.study.base import Spec
from bitbench.study.study import Argument, EngineSetup
from bitbench.study.variant import Variant
from bitbench.study.workload import Api, Workload, workload_length_text
from bitbench.util.errors import StudyFileError
from bitbench.util.text import did_you_mean
from bitbench.util.units import BY_HAND


def spelled_arguments(args: Mapping[str, Argument]) -> dict[str, Argument]:
    """Under one spelling, so that `max_model_len`, `--max-model-len` and `no-enforce-eager` override our defaults."""
    options: dict[str, Argument] = {}
    for name, value in args.items():
        option = name.lstrip("-").replace("_", "-")
        if option.startswith("no-") and isinstance(value, bool):
            options[option.removeprefix("no-")] = not value
        else:
            options[option] = value
    return options


def tensor_parallel_size(args: Mapping[str, Argument]) -> int:
    """Devices that share every layer, as engines for GPUs spell it."""
    return _count(args, ("tensor-parallel-size", "tp-size", "tp"))


def pipeline_parallel_size(args: Mapping[str, Argument]) -> int:
    """Groups of devices that share out the layers."""
    return _count(args, ("pipeline-parallel-size", "pp-size"))


def _count(args: Mapping[str, Argument], names: Sequence[str]) -> int:
    chosen = spelled_arguments(args)
    count = next((chosen[name] for name in names if name in chosen), 1)
    return count if type(count) is int and count > 0 else 1


def command_words(options: Mapping[str, Argument]) -> list[str]:
    """`--name value`; a switch becomes `--name` or `--no-name`."""
    words: list[str] = []
    for name, value in options.items():
        words += (
            [f"--{name}" if value else f"--no-{name}"]
            if isinstance(value, bool)
            else [f"--{name}", str(value)]
        )
    return words


def check_argument_names(args: Mapping[str, Argument], known: Iterable[str], *, who: str) -> None:
    """Raises StudyFileError for an argument that the engine does not have; `who` begins the sentence."""
    names = list(known)
    for name in args:
        if name not in names:
            hint = did_you_mean(name, names)
            raise StudyFileError(
                f"{who} has no argument {name}; {hint}it has {', '.join(names)}", ("args", name)
            )


def check_arguments(
    args: Mapping[str, Argument], wanted: type[Spec], *, who: str, whose: str
) -> None:
    """Raises StudyFileError with the first thing that is wrong with the arguments, and what would be right.

    `who` begins a sentence about the engine ("an endpoint"), `whose` one about an argument of it ("the endpoint's").
    """
    check_argument_names(args, wanted.model_fields, who=who)
    try:
        wanted.model_validate(args, context=BY_HAND)
    except ValidationError as invalid:
        error = invalid.errors()[0]
        name = str(error["loc"][0])
        if error["type"] == "missing":
            needed = f"{who} needs the argument {name}: {wanted.model_fields[name].description}"
            raise StudyFileError(needed, ("args",)) from None
        problem = error["msg"].removeprefix("Value error, ")
        raise StudyFileError(f"{whose} argument {name}: {problem}", ("args", name)) from None


def refuse_long_context(variant: Variant, workload: Workload) -> str | None:
    """Why the workload does not fit into the model's context, or None."""
    limit = variant.facts.context_tokens
    if limit is None or workload.context_tokens <= limit:
        return None
    turns = "" if workload.turns == 1 else f", {workload.turns} times"
    return (
        f"{workload.name} needs a context of {workload.context_tokens:,} tokens "
        f"({workload_length_text(workload.input_tokens)} in and {workload_length_text(workload.output_tokens)} "
        f"out{turns}), but {variant.model} supports {limit:,}."
    )


def refuse_context_argument(setup: EngineSetup, option: str, workload: Workload) -> str | None:
    """Why the workload does not fit into the context that the study's own argument sets, or None."""
    longest = spelled_arguments(setup.args).get(option)
    if not isinstance(longest, int) or workload.context_tokens <= longest:
        return None
    return (
        f"{workload.name} needs a context of {workload.context_tokens:,} tokens, but {option} of {setup.name} is "
        f"{longest:,}."
    )


def refuse_text(engine: str, workload: Workload) -> str | None:
    """Why a server that takes nothing but token ids, and answers as many as it is asked for, cannot be asked this, or
    None."""
    if not workload.output_forced:
        return f"{workload.name} may end early, but the {engine} engine answers all tokens; remove `output_forced`."
    if workload.text is None and workload.api is Api.COMPLETIONS:
        return None
    return f"{workload.name} sends text, but the {engine} engine takes only token ids; remove `text` and `api`."

"""Arguments of engines: their spelling, their checks, and the workloads that they rule out."""

from collections.abc import Iterable, Mapping, Sequence

from pydantic import ValidationError

from bitbench.study.base import Spec
from bitbench.study.study import Argument, EngineSetup
from bitbench.study.variant import Variant
from bitbench.study.workload import Api, Workload, format_length
from bitbench.util.errors import StudyFileError
from bitbench.util.text import suggest_name
from bitbench.util.units import BY_HAND


def normalize_arguments(args: Mapping[str, Argument]) -> dict[str, Argument]:
    """Return the arguments in one spelling: `max_model_len`, `--max-model-len` are the same.

    `no-enforce-eager: true` becomes `enforce-eager: false`, which overrides our default.
    """
    options: dict[str, Argument] = {}
    for name, value in args.items():
        option = name.lstrip("-").replace("_", "-")
        if option.startswith("no-") and isinstance(value, bool):
            options[option.removeprefix("no-")] = not value
        else:
            options[option] = value
    return options


def tensor_parallel_size(args: Mapping[str, Argument]) -> int:
    """Return the number of devices that share every layer, in the names that GPU engines use."""
    return _get_count(args, ("tensor-parallel-size", "tp-size", "tp"))


def pipeline_parallel_size(args: Mapping[str, Argument]) -> int:
    """Return the number of groups of devices among which the layers are divided."""
    return _get_count(args, ("pipeline-parallel-size", "pp-size"))


def _get_count(args: Mapping[str, Argument], names: Sequence[str]) -> int:
    chosen = normalize_arguments(args)
    count = next((chosen[name] for name in names if name in chosen), 1)
    return count if type(count) is int and count > 0 else 1


def format_options(options: Mapping[str, Argument]) -> list[str]:
    """Return `--name value` for each option, and `--name` or `--no-name` for a switch."""
    words: list[str] = []
    for name, value in options.items():
        if isinstance(value, bool):
            switch = name if value else f"no-{name}"
            words.append(f"--{switch}")
        else:
            words += [f"--{name}", str(value)]
    return words


def check_argument_names(args: Mapping[str, Argument], defined: Iterable[str], *, who: str) -> None:
    """Raise StudyFileError for an argument that the engine lacks. `who` begins the sentence."""
    names = list(defined)
    for name in args:
        if name not in names:
            hint = suggest_name(name, names)
            raise StudyFileError(
                f"{who} has no argument {name}; {hint}it has {', '.join(names)}", ("args", name)
            )


def check_arguments(
    args: Mapping[str, Argument], arguments_type: type[Spec], *, who: str, whose: str
) -> None:
    """Raise StudyFileError for the first wrong argument, with the values that would be right.

    `who` begins a sentence about the engine ("an endpoint"). `whose` begins a sentence about one of
    its arguments ("the endpoint's").
    """
    check_argument_names(args, arguments_type.model_fields, who=who)
    try:
        arguments_type.model_validate(args, context=BY_HAND)
    except ValidationError as invalid:
        error = invalid.errors()[0]
        name = str(error["loc"][0])
        if error["type"] == "missing":
            description = arguments_type.model_fields[name].description
            needed = f"{who} needs the argument {name}: {description}"
            raise StudyFileError(needed, ("args",)) from None
        problem = error["msg"].removeprefix("Value error, ")
        raise StudyFileError(f"{whose} argument {name}: {problem}", ("args", name)) from None


def refuse_long_context(variant: Variant, workload: Workload) -> str | None:
    """Return why the workload does not fit into the model's context, or None if it does."""
    limit = variant.facts.context_tokens
    if limit is None or workload.context_tokens <= limit:
        return None
    turns = "" if workload.turns == 1 else f", {workload.turns} times"
    inputs = format_length(workload.input_tokens)
    outputs = format_length(workload.output_tokens)
    return (
        f"{workload.name} needs a context of {workload.context_tokens:,} tokens "
        f"({inputs} in and {outputs} out{turns}), but {variant.model} supports {limit:,}."
    )


def refuse_context_argument(setup: EngineSetup, option: str, workload: Workload) -> str | None:
    """Return why the workload exceeds the context that the study's argument sets, or None."""
    longest = normalize_arguments(setup.args).get(option)
    if not isinstance(longest, int) or workload.context_tokens <= longest:
        return None
    return (
        f"{workload.name} needs a context of {workload.context_tokens:,} tokens, "
        f"but {option} of {setup.name} is {longest:,}."
    )


def refuse_text(engine: str, workload: Workload) -> str | None:
    """Return why a server of token ids only cannot run the workload, or None if it can.

    Such a server generates exactly the requested number of tokens.
    """
    if not workload.output_forced:
        return (
            f"{workload.name} may end early, but the {engine} engine answers all tokens; "
            "remove `output_forced`."
        )
    if workload.text is None and workload.api is Api.COMPLETIONS:
        return None
    return (
        f"{workload.name} sends text, but the {engine} engine takes only token ids; "
        "remove `text` and `api`."
    )

"""The one document that a command prints with --json, even after an error. `bitbench schema` prints
its JSON Schema."""

import json
from typing import Any, Generic, Literal, NoReturn, TypeVar, cast

import typer

from bitbench.cli.app import collect_commands
from bitbench.feature import Offer
from bitbench.study.base import Record
from bitbench.util.errors import ExitCode

ANSWER_FORMAT: Literal[1] = 1  # 1: first published form

A = TypeVar("A")


class Printed(Record, Generic[A]):
    """The document of a command. If `answer` is null, `error` is the reason."""

    format: Literal[1] = ANSWER_FORMAT
    command: str
    exit_code: int
    meaning: str  # of the exit code
    error: str | None = None
    answer: A | None = None


def collect_answers() -> dict[str, Offer]:
    """Return the type of each command's answer."""
    answers: dict[str, Offer] = {}
    for name, (command, offer) in collect_commands().items():
        if command.answer is not None:
            answers[name] = Offer(offer.feature, command.answer)
    return answers


def _load_answer_type(command: str) -> type[Printed[Any]]:
    return cast("type[Printed[Any]]", Printed[collect_answers()[command].load()])  # type: ignore[misc]


def make_answer_schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema of a command's document. It allows further fields, since a later
    version may add some."""
    schema = _load_answer_type(command).model_json_schema(mode="serialization")
    for definition in schema["$defs"].values():
        definition.pop("additionalProperties", None)
    title = f"bitbench {command} --json"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": title}


def format_json_answer(
    command: str, answer: Record | None, exit_code: ExitCode, error: str | None = None
) -> str:
    """Return a command's document as JSON in ASCII. This escapes names from files and servers,
    which may contain codes that control a terminal."""
    printed = _load_answer_type(command)(
        command=command, exit_code=exit_code, meaning=exit_code.meaning, error=error, answer=answer
    )
    return json.dumps(json.loads(printed.model_dump_json()), indent=2)


def end_with_json(command: str, answer: Record, exit_code: ExitCode) -> NoReturn:
    """Print the document, which must be the only output on stdout, and exit."""
    typer.echo(format_json_answer(command, answer, exit_code))
    raise typer.Exit(exit_code)

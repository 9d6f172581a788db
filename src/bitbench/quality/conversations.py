"""The scripted conversations that come with bitbench, as data in `conversations.yaml`, and whether an answer is the
JSON or tool call that was asked for."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from bitbench.study.base import Json, Spec
from bitbench.study.quality import CONVERSATION_TURNS, CONVERSATIONS, Turns
from bitbench.util import yaml_file
from bitbench.util.text import printable

_FILE = Path(__file__).with_name("conversations.yaml")

Kind = Literal["string", "integer", "number", "boolean", "strings"] | tuple[str, ...]
Fields = dict[str, Kind]
Message = dict[str, str]  # role and content


class ScriptedExchange(Spec):
    say: str
    answer: dict[str, Json]

    @property
    def messages(self) -> list[Message]:
        return [
            {"role": "user", "content": self.say},
            {"role": "assistant", "content": json.dumps(self.answer)},
        ]


class ScriptedTask(Spec):
    """What is to be answered: an object with these fields, or a call of one of these tools."""

    name: str
    asks: str
    fields: Fields | None = None
    tools: dict[str, Fields] | None = None
    examples: tuple[ScriptedExchange, ...]
    turns: tuple[ScriptedExchange, ...] = Field(
        description="of its conversations, one after the other"
    )

    @model_validator(mode="after")
    def _is_one_of_two(self) -> "ScriptedTask":
        if (self.fields is None) == (self.tools is None):
            raise ValueError(f"{self.name}: give `fields` or `tools`")
        return self


class _Tasks(Spec):
    tasks: tuple[ScriptedTask, ...]


class ScriptedConversation(Spec):
    name: str
    task: ScriptedTask
    turns: tuple[ScriptedExchange, ...]

    @property
    def messages(self) -> list[list[Message]]:
        """Of each turn: the examples, the turns before with the script's answers, and what is said now."""
        told = [message for example in self.task.examples for message in example.messages]
        found = []
        for exchange in self.turns:
            said, answered = exchange.messages
            found.append([*told, said])
            told = [*told, said, answered]
        return found


@cache
def conversation_tasks() -> dict[str, ScriptedTask]:
    text = _FILE.read_text(encoding="utf-8")
    read = yaml_file.parse_yaml(
        text, _Tasks, name=_FILE.name, outline="`tasks:` and a list", error=ValueError
    )
    return {task.name: task for task in read.tasks}


def conversations(wanted: Turns) -> Sequence[ScriptedConversation]:
    """The first of each task, then the second: fewer than all are of all tasks alike."""
    known = list(conversation_tasks().values())
    found = [
        ScriptedConversation(
            name=f"{task.name} {number + 1}",
            task=task,
            turns=task.turns[
                number * CONVERSATION_TURNS : number * CONVERSATION_TURNS + wanted.turns
            ],
        )
        for number in range(CONVERSATIONS // len(known))
        for task in known
    ]
    return found[: wanted.conversations]


LONGEST = 4_096  # characters: an answer has `TURN_TOKENS` tokens
_SHOWN = 24  # characters of a key that a fault repeats


def conversation_fault(text: str, task: ScriptedTask) -> str | None:
    """Why it is not valid; None where it is.

    As strict as a program that reads it: one JSON value and nothing else on its line, all keys and no further one, each
    of the right kind. Whether the values are the right ones is not asked here.
    """
    said = text.strip()
    if not said:
        return "it is empty"
    if len(said) > LONGEST:
        return f"it has more than {LONGEST:,} characters"
    try:
        value = json.loads(said, parse_constant=_no_json)
    except (ValueError, RecursionError) as error:
        return f"it is not JSON ({_why(error)})"
    if not isinstance(value, dict):
        return "it is JSON, but not an object"
    return (
        _fault_of_fields(value, task.fields)
        if task.fields is not None
        else _fault_of_call(value, task.tools or {})
    )


def _fault_of_call(value: dict[str, Json], tools: Mapping[str, Fields]) -> str | None:
    if (fault := _fault_of_keys(value, {"tool", "arguments"})) is not None:
        return fault
    tool, arguments = value["tool"], value["arguments"]
    if not isinstance(tool, str) or tool not in tools:
        return "it calls a tool that does not exist"
    if not isinstance(arguments, dict):
        return "its arguments are not an object"
    return _fault_of_fields(arguments, tools[tool])


def _fault_of_fields(value: dict[str, Json], fields: Fields) -> str | None:
    if (fault := _fault_of_keys(value, set(fields))) is not None:
        return fault
    wrong = next((name for name, kind in fields.items() if not _is(value[name], kind)), None)
    return None if wrong is None else f"{_quoted(wrong)} is of the wrong kind"


def _fault_of_keys(value: dict[str, Json], wanted: set[str]) -> str | None:
    if missing := sorted(wanted - value.keys()):
        return f"{_quoted(missing[0])} is missing"
    if unknown := sorted(value.keys() - wanted):
        return f"{_quoted(unknown[0])} was not asked for"
    return None


def _is(value: Json, kind: Kind) -> bool:
    if isinstance(kind, tuple):
        return isinstance(value, str) and value in kind
    return _CHECKS[kind](value)


def _is_number(value: Json) -> bool:
    return not isinstance(value, bool) and (
        isinstance(value, int) or (isinstance(value, float) and isfinite(value))
    )


_CHECKS: Mapping[str, Callable[[Json], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: (
        _is_number(value) and value == int(value)
    ),  # 3.0 is whole, too: as JSON Schema has it
    "number": _is_number,
    "boolean": lambda value: isinstance(value, bool),
    "strings": lambda value: (
        isinstance(value, list) and all(isinstance(item, str) for item in value)
    ),
}


def _no_json(constant: str) -> Json:
    raise ValueError(f"it has no {constant}")


def _why(error: Exception) -> str:
    """Without the place, so that the same mistake has the same words."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return error.msg if isinstance(error, json.JSONDecodeError) else str(error)


def _quoted(name: str) -> str:
    return f"`{printable(name, _SHOWN)}`"

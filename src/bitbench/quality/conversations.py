"""The scripted conversations in `conversations.yaml`, and the check of answers, which should be
JSON or tool calls.
"""

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
from bitbench.util.text import format_printable

_FILE = Path(__file__).with_name("conversations.yaml")

Kind = Literal["string", "integer", "number", "boolean", "strings"] | tuple[str, ...]
Fields = dict[str, Kind]
Message = dict[str, str]  # role and content


class ScriptedExchange(Spec):
    """A message of the user with the right answer."""

    say: str
    answer: dict[str, Json]

    @property
    def messages(self) -> list[Message]:
        return [
            {"role": "user", "content": self.say},
            {"role": "assistant", "content": json.dumps(self.answer)},
        ]


class ScriptedTask(Spec):
    """A task whose answers are objects with these fields, or calls of these tools."""

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
    """A conversation of a task."""

    name: str
    task: ScriptedTask
    turns: tuple[ScriptedExchange, ...]

    @property
    def messages(self) -> list[list[Message]]:
        """Return the messages of each turn: examples, earlier turns and the question."""
        history: list[Message] = []
        for example in self.task.examples:
            history += example.messages
        turns = []
        for exchange in self.turns:
            question, answer = exchange.messages
            turns.append([*history, question])
            history += (question, answer)
        return turns


@cache
def load_conversation_tasks() -> dict[str, ScriptedTask]:
    """Return the tasks by name."""
    text = _FILE.read_text(encoding="utf-8")
    read = yaml_file.parse_yaml(
        text, _Tasks, name=_FILE.name, outline="`tasks:` and a list", error=ValueError
    )
    return {task.name: task for task in read.tasks}


def conversations(requested: Turns) -> Sequence[ScriptedConversation]:
    """Return the first conversation of each task, then the second, up to the requested number."""
    result = []
    tasks = load_conversation_tasks().values()
    for number in range(CONVERSATIONS // len(tasks)):
        start = number * CONVERSATION_TURNS
        for task in tasks:
            turns = task.turns[start : start + requested.turns]
            name = f"{task.name} {number + 1}"
            result.append(ScriptedConversation(name=name, task=task, turns=turns))
    return result[: requested.conversations]


LONGEST = 4_096  # characters: an answer has `TURN_TOKENS` tokens
_SHOWN = 24  # characters of a key that a fault repeats


def find_fault(text: str, task: ScriptedTask) -> str | None:
    """Return the reason why an answer is not valid, or None.

    It is as strict as a program: one JSON value and nothing else on its line, with exactly the
    expected keys, each of the right kind. It does not check if the values are right.
    """
    line = text.strip()
    if not line:
        return "it is empty"
    if len(line) > LONGEST:
        return f"it has more than {LONGEST:,} characters"
    try:
        value = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return f"it is not JSON ({_describe_json_error(error)})"
    if not isinstance(value, dict):
        return "it is JSON, but not an object"
    if task.fields is not None:
        return _find_field_fault(value, task.fields)
    return _find_call_fault(value, task.tools or {})


def _find_call_fault(value: dict[str, Json], tools: Mapping[str, Fields]) -> str | None:
    if (fault := _find_key_fault(value, {"tool", "arguments"})) is not None:
        return fault
    tool = value["tool"]
    arguments = value["arguments"]
    if not isinstance(tool, str) or tool not in tools:
        return "it calls a tool that does not exist"
    if not isinstance(arguments, dict):
        return "its arguments are not an object"
    return _find_field_fault(arguments, tools[tool])


def _find_field_fault(value: dict[str, Json], fields: Fields) -> str | None:
    if (fault := _find_key_fault(value, set(fields))) is not None:
        return fault
    for name, kind in fields.items():
        if not _is_of_kind(value[name], kind):
            return f"{_quote_name(name)} is of the wrong kind"
    return None


def _find_key_fault(value: dict[str, Json], expected: set[str]) -> str | None:
    if missing := sorted(expected - value.keys()):
        return f"{_quote_name(missing[0])} is missing"
    if unknown := sorted(value.keys() - expected):
        return f"{_quote_name(unknown[0])} was not asked for"
    return None


def _is_of_kind(value: Json, kind: Kind) -> bool:
    if isinstance(kind, tuple):
        return isinstance(value, str) and value in kind
    return _CHECKS[kind](value)


def _is_number(value: Json) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and isfinite(value))


def _is_integer(value: Json) -> bool:
    """Return True for a whole number. 3.0 is one, as in JSON Schema."""
    return _is_number(value) and value == int(value)


def _are_strings(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


_CHECKS: Mapping[str, Callable[[Json], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": _is_integer,
    "number": _is_number,
    "boolean": lambda value: isinstance(value, bool),
    "strings": _are_strings,
}


def _refuse_constant(constant: str) -> Json:
    raise ValueError(f"it has no {constant}")


def _describe_json_error(error: Exception) -> str:
    """Return the cause without its position, so that equal mistakes have equal words."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    return str(error)


def _quote_name(name: str) -> str:
    return f"`{format_printable(name, _SHOWN)}`"

"""Whether an answer of a scripted conversation is the JSON or the tool call that was asked for.

As strict as a program that reads it: one JSON value and nothing else on its line, all keys and no further one, each of
the right kind. Whether the values are the right ones is not asked here.
"""

import json
from collections.abc import Callable, Mapping
from math import isfinite

from bitbench.quality.conversations import Fields, Kind, ScriptedTask
from bitbench.study.base import Json
from bitbench.util.quotation import printable

LONGEST = 4_096  # characters: an answer has `TURN_TOKENS` tokens
_SHOWN = 24  # characters of a key that a fault repeats


def fault_of(text: str, task: ScriptedTask) -> str | None:
    """Why it is not valid; None where it is."""
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
    return _fault_of_fields(value, task.fields) if task.fields is not None else _fault_of_call(value, task.tools or {})


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
    return not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and isfinite(value)))


_CHECKS: Mapping[str, Callable[[Json], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: _is_number(value) and value == int(value),  # 3.0 is whole, too: as JSON Schema has it
    "number": _is_number,
    "boolean": lambda value: isinstance(value, bool),
    "strings": lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
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

"""Read a study file and say, for every mistake in it, the line, the field and what is allowed."""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from bitbench.core.base import Json
from bitbench.core.study import Study
from bitbench.errors import StudyFileError

Location = Sequence[int | str]

LONGEST_SHOWN_VALUE = 60  # characters of a wrong value that a message repeats


def study_schema() -> dict[str, Any]:
    """The JSON Schema of a study file, for editors."""
    schema = Study.model_json_schema(mode="validation")
    _allow_short_forms(schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "bitbench study", **schema}


def read_study(path: Path) -> Study:
    """The checked study; raises StudyFileError with every mistake found."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise StudyFileError(
            f"there is no study file {path}; `bitbench init {path}` writes one to start from"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise StudyFileError(f"{path} cannot be read as UTF-8 text: {error}") from error
    return parse_study(text, name=str(path))


def parse_study(text: str, *, name: str) -> Study:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        content: Json = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise StudyFileError(f"{name}:{line}: not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise StudyFileError(f"{name}: not valid YAML: {error}") from error
    if not isinstance(root, yaml.MappingNode):
        raise StudyFileError(f"{name}:1: a study file is a mapping (`name: …`, `engines: …`, `workloads: …`)")
    repeated = [f"{name}:{line}: `{key}` is given twice; keep one of them" for key, line in _repeated_keys(root)]
    if repeated:
        raise StudyFileError("\n".join(repeated))
    try:
        return Study.model_validate(content)
    except ValidationError as error:
        mistakes = dict.fromkeys(_describe(mistake, root, name) for mistake in error.errors())
        raise StudyFileError("\n".join(mistakes)) from error


def _repeated_keys(node: yaml.Node) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _repeated_keys(item)
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if key.value in seen:
                yield str(key.value), key.start_mark.line + 1
            seen.add(key.value)
            yield from _repeated_keys(value)


def _describe(mistake: Any, root: yaml.Node, name: str) -> str:
    location, kind, value = mistake["loc"], mistake["type"], mistake["input"]
    line, field = _line_of(root, location)
    where = f"{name}:{line}: {field}" if field else f"{name}:{line}"
    if kind == "extra_forbidden":
        known = _known_fields(location[:-1])
        guess = difflib.get_close_matches(str(location[-1]), known, n=1)
        hint = f"did you mean `{guess[0]}`? " if guess else ""
        return f"{where}: unknown field; {hint}known are {', '.join(known)}"
    if kind == "missing":
        parent = f" in `{_dotted(location[:-1])}`" if location[:-1] else ""
        return f"{name}:{line}: the field `{location[-1]}` is missing{parent}"
    message = mistake["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if kind == "value_error":
        return f"{where}: {message}"
    shown = repr(value)
    if len(shown) > LONGEST_SHOWN_VALUE:
        shown = shown[:LONGEST_SHOWN_VALUE] + "…"
    return f"{where}: {message}, but it is {shown}"


def _line_of(root: yaml.Node, location: Location) -> tuple[int, str]:
    """The line of the deepest part of `location` that the file has, and that part's dotted name."""
    node, line, found = root, root.start_mark.line + 1, []
    for part in location:
        child = _child(node, part)
        if child is None:
            break
        node, line = child
        found.append(part)
    return line, _dotted(found)


def _child(node: yaml.Node, part: int | str) -> tuple[yaml.Node, int] | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        item = node.value[part]
        return item, item.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == part:
                return value, key.start_mark.line + 1
    return None


def _dotted(location: Location) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _known_fields(location: Location) -> list[str]:
    """The fields that the schema knows at this place."""
    schema = Study.model_json_schema()
    node: dict[str, Any] = schema
    for part in location:
        step = node.get("items") if isinstance(part, int) else node.get("properties", {}).get(part)
        if step is None:  # a part that only the validator knows, such as the name of a union's branch
            continue
        node = _resolved(step, schema)
    return list(node.get("properties", {}))


def _resolved(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in node:
        resolved: dict[str, Any] = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
        return resolved
    return node


def _allow_short_forms(schema: dict[str, Any]) -> None:
    """What validators accept besides the full form: a name for an engine or workload, one number for a range."""
    from bitbench.core.workload import BUILT_IN_WORKLOADS

    properties, definitions = schema["properties"], schema["$defs"]
    definitions["EngineSetup"]["required"] = ["engine"]
    for name in ("engine", "name"):
        definitions["EngineSetup"]["properties"][name]["type"] = ["string", "null"]
    properties["engines"]["items"] = {"anyOf": [{"type": ["string", "null"]}, properties["engines"]["items"]]}
    properties["workloads"]["items"] = {
        "anyOf": [{"type": "string", "enum": list(BUILT_IN_WORKLOADS)}, properties["workloads"]["items"]]
    }
    for name in ("models", "recipes"):
        properties[name] = {"anyOf": [{"type": "string"}, properties[name]]}
    count = definitions["Count"]
    definitions["Count"] = {"anyOf": [{"type": "integer", "minimum": 1}, count]}

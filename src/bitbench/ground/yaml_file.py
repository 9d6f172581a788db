"""YAML that a person wrote, read into a frozen type; every mistake gets its line, its field and what is allowed."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from bitbench.ground.near_miss import did_you_mean
from bitbench.ground.units import BY_HAND

Location = Sequence[int | str]
Parsed = TypeVar("Parsed", bound=BaseModel)

LONGEST_SHOWN_VALUE = 60  # characters of a wrong value that a message repeats


def read_text(path: Path, *, missing: str, error: type[Exception]) -> str:
    """The file as text; raises `error`, with `missing` where there is no such file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise error(missing) from None
    except (OSError, UnicodeDecodeError) as problem:
        raise error(f"{path} cannot be read as UTF-8 text: {problem}") from problem


def parse(
    text: str, spec: type[Parsed], *, name: str, outline: str, error: type[Exception], by_hand: bool = True
) -> Parsed:
    """The checked content; raises `error` with every mistake found, one per line.

    `name` is what messages call the file; `outline` says what it should hold when it is no mapping at all. What was not
    written by hand just now, but kept by an earlier version, may have numbers without a unit.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except yaml.MarkedYAMLError as problem:
        line = problem.problem_mark.line + 1 if problem.problem_mark else 1
        raise error(f"{name}:{line}: not valid YAML: {problem.problem}") from problem
    except yaml.YAMLError as problem:
        raise error(f"{name}: not valid YAML: {problem}") from problem
    if not isinstance(root, yaml.MappingNode):
        raise error(f"{name}:1: {outline}")
    repeated = [f"{name}:{line}: `{key}` is given twice; keep one" for key, line in _repeated_keys(root)]
    if repeated:
        raise error("\n".join(repeated))
    try:
        return spec.model_validate(content, context=BY_HAND if by_hand else None)
    except ValidationError as problem:
        mistakes = dict.fromkeys(_describe(mistake, root, name, spec) for mistake in _causes(problem))
        raise error("\n".join(mistakes)) from problem


def line_of(text: str, location: Location) -> tuple[int, str]:
    """The line of a field in a file that was read before, and its dotted name; empty where the file lacks it."""
    return _line_of(yaml.compose(text, Loader=yaml.SafeLoader), location)


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


def _causes(problem: ValidationError) -> list[Any]:
    """Without those that follow from others: a list whose only item is wrong counts as empty."""
    mistakes = problem.errors()
    return [
        mistake
        for mistake in mistakes
        if mistake["type"] != "too_short"
        or not any(mistake["loc"] == other["loc"][: len(mistake["loc"])] for other in mistakes if other != mistake)
    ]


def _describe(mistake: Any, root: yaml.Node, name: str, spec: type[BaseModel]) -> str:
    location, kind, value = mistake["loc"], mistake["type"], mistake["input"]
    line, field = _line_of(root, location)
    where = f"{name}:{line}: {field}" if field else f"{name}:{line}"
    if kind == "extra_forbidden":
        known = _known_fields(spec, location[:-1])
        return f"{where}: unknown field; {did_you_mean(str(location[-1]), known)}known fields: {', '.join(known)}"
    if kind == "missing":
        parent = f" in `{field}`" if field else ""
        return f"{name}:{line}: the field `{location[-1]}` is missing{parent}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tag = mistake["ctx"]["discriminator"].strip("'")
        given = f", but it is {mistake['ctx']['tag']!r}" if kind == "union_tag_invalid" else ""
        return f"{where}: `{tag}` must be one of {', '.join(_branches(spec, location))}{given}"
    message = mistake["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if kind == "value_error":
        return f"{where}: {message}"
    shown = repr(value)
    if len(shown) > LONGEST_SHOWN_VALUE:
        shown = shown[:LONGEST_SHOWN_VALUE] + "…"
    return f"{where}: {message}, but it is {shown}"


def _line_of(root: yaml.Node, location: Location) -> tuple[int, str]:
    """The line of the deepest part of `location` that the file has, and that part's dotted name.

    A part that only the validator knows, such as the name of a union's branch, is passed over.
    """
    node, line, found = root, root.start_mark.line + 1, []
    for part in location:
        child = _child(node, part)
        if child is not None:
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


def _known_fields(spec: type[BaseModel], location: Location) -> list[str]:
    return list(_schema_at(spec, location).get("properties", {}))


def _branches(spec: type[BaseModel], location: Location) -> list[str]:
    return list(_schema_at(spec, location).get("discriminator", {}).get("mapping", {}))


def _schema_at(spec: type[BaseModel], location: Location) -> dict[str, Any]:
    """The part of the JSON Schema that is about this place."""
    schema = spec.model_json_schema()
    node: dict[str, Any] = schema
    for part in location:
        branches = node.get("discriminator", {}).get("mapping", {})
        if isinstance(part, int):
            step = node.get("items")
        elif part in branches:
            step = {"$ref": branches[part]}
        else:
            step = node.get("properties", {}).get(part)
        if step is not None:
            node = _resolved(step, schema)
    return node


def _resolved(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "discriminator" not in node:  # an object or nothing, an object or a number
        objects = [branch for branch in node.get("anyOf", node.get("oneOf", [])) if "$ref" in branch]
        if len(objects) == 1:
            node = objects[0]
    if "$ref" in node:
        resolved: dict[str, Any] = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
        return resolved
    return node

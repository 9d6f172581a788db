"""YAML that a person wrote, read into a frozen model. Every mistake gets its line, its field and
the allowed values.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from yaml.composer import ComposerError

from bitbench.util.files import UnreadableFileError, read_text_file
from bitbench.util.text import suggest_name
from bitbench.util.units import BY_HAND, show_wrong_value

Location = Sequence[int | str]
Parsed = TypeVar("Parsed", bound=BaseModel)

MOST_MISTAKES = 50  # reported at once, since a file with more is of another kind
# Limits of a file. A study of 100,000 points (100 engines, 1,000 workloads) has about 15,000 values
# in 150 kB, five levels deep.
LARGEST_FILE_BYTES = 2**20
MOST_NODES = 50_000
DEEPEST = 50
_ENDLESS_NUMBER = re.compile(r"[-+0-9_:.]{100,}")


def read_yaml_text(path: Path, *, missing: str, error: type[Exception]) -> str:
    """Read a file as text. Raise `error` on failure, with `missing` if the file does not exist."""
    if not path.exists():
        raise error(missing)
    try:
        return read_text_file(path, largest_bytes=LARGEST_FILE_BYTES)
    except UnreadableFileError as problem:
        raise error(f"{path} cannot be read: {problem}") from problem


def parse_yaml(
    text: str,
    spec: type[Parsed],
    *,
    name: str,
    outline: str,
    error: type[Exception],
    defaults: Mapping[str, object] = MappingProxyType({}),
) -> Parsed:
    """Parse and check a file. Raise `error` with the mistakes, one per line.

    `name` is the file's name in messages. `outline` describes the expected content if it is not a
    mapping. `defaults` count for missing fields.
    """
    try:
        _refuse_too_much(text)
        loader = _Loader(text)
        root = loader.get_single_node()
        repeated = list(islice(_iter_repeated_keys(root), MOST_MISTAKES))
        content = None
        if root is not None and not repeated:
            content = loader.construct_document(root)
    except yaml.MarkedYAMLError as problem:
        line = 1
        if problem.problem_mark:
            # The end of a file may be reported as the line after its last one.
            line = min(problem.problem_mark.line + 1, len(text.splitlines()) or 1)
        message = str(problem.problem)
        if message.startswith("but "):
            message = f"{problem.context}, {message}"
        raise error(f"{name}:{line}: not valid YAML: {message}") from problem
    except (
        yaml.YAMLError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        OverflowError,
    ) as problem:
        raise error(f"{name}: not valid YAML: {problem}") from problem
    if not isinstance(root, yaml.MappingNode):
        raise error(f"{name}:1: {outline}")
    if repeated:
        lines = [f"{name}:{line}: `{key}` is given twice; keep one" for key, line in repeated]
        raise error("\n".join(lines))
    try:
        return spec.model_validate({**defaults, **(content or {})}, context=BY_HAND)
    except ValidationError as problem:
        raise error("\n".join(_describe_mistakes(problem, root, name, spec))) from problem


def find_line(text: str, location: Location) -> tuple[int, str]:
    """Return the line and the dotted name of a field in a file that was parsed before.

    The name is empty if the file lacks the field.
    """
    root = yaml.compose(text, Loader=_Loader)
    assert root is not None  # it was read before
    return _find_line(root, location)


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is twenty times faster


def _refuse_too_much(text: str) -> None:
    """Raise a YAMLError for a file that is too deep, or too large after aliases are expanded."""
    values = 0
    begun = []
    sizes: dict[str | None, int] = {}
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            values += sizes.get(event.anchor, 0)
        elif isinstance(event, yaml.NodeEvent):
            values += 1
            sizes[event.anchor] = 1
            if (
                isinstance(event, yaml.ScalarEvent)
                and event.implicit[0]
                and _ENDLESS_NUMBER.fullmatch(event.value)
            ):
                raise _make_size_error("a number without end", event)
        if isinstance(event, yaml.CollectionStartEvent):
            begun.append((event.anchor, values))
            sizes[event.anchor] = MOST_NODES  # until it ends, because it may contain itself
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = begun.pop()
            sizes[anchor] = values - before + 1
        if len(begun) > DEEPEST:
            raise _make_size_error(f"more than {DEEPEST} levels within each other", event)
        if values > MOST_NODES:
            raise _make_size_error(
                f"more than {MOST_NODES:,} values, counting those that aliases stand for", event
            )


def _make_size_error(problem: str, event: Any) -> ComposerError:
    return ComposerError(None, None, problem, event.start_mark)


def _iter_repeated_keys(node: yaml.Node | None) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _iter_repeated_keys(item)
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):  # other keys are refused when they are read
                if key.value in seen:
                    yield key.value, key.start_mark.line + 1
                seen.add(key.value)
            yield from _iter_repeated_keys(value)


def _describe_mistakes(
    problem: ValidationError, root: yaml.Node, name: str, spec: type[BaseModel]
) -> list[str]:
    """Return a line for each of the first mistakes, and one line for the rest."""
    causes = _list_causes(problem)
    lines = [_describe_mistake(mistake, root, name, spec) for mistake in causes[:MOST_MISTAKES]]
    lines = list(dict.fromkeys(lines))
    if len(causes) > MOST_MISTAKES:
        lines.append(f"{name}: and {len(causes) - MOST_MISTAKES:,} more")
    return lines


def _list_causes(problem: ValidationError) -> list[Any]:
    """Return the mistakes without consequences: a list whose only item is wrong counts as empty."""
    mistakes = problem.errors()
    return [mistake for mistake in mistakes if not _is_consequence(mistake, mistakes)]


def _is_consequence(mistake: Any, mistakes: Iterable[Any]) -> bool:
    if mistake["type"] != "too_short":
        return False
    location = mistake["loc"]
    others = [other for other in mistakes if other != mistake]
    return any(other["loc"][: len(location)] == location for other in others)


def _describe_mistake(mistake: Any, root: yaml.Node, name: str, spec: type[BaseModel]) -> str:
    """Return a mistake with its line, its field and the allowed values."""
    location = mistake["loc"]
    kind = mistake["type"]
    line, field = _find_line(root, location)
    where = f"{name}:{line}"
    parent = ""
    if field:
        where = f"{name}:{line}: {field}"
        parent = f" in `{field}`"
    if kind == "extra_forbidden":
        fields = list(_find_schema(spec, location[:-1]).get("properties", {}))
        hint = suggest_name(str(location[-1]), fields)
        return f"{where}: unknown field; {hint}known fields: {', '.join(fields)}"
    if kind == "missing":
        return f"{name}:{line}: the field `{location[-1]}` is missing{parent}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tag = mistake["ctx"]["discriminator"].strip("'")
        branches = _find_schema(spec, location).get("discriminator", {}).get("mapping", {})
        message = f"{where}: `{tag}` must be one of {', '.join(branches)}"
        if kind == "union_tag_invalid":
            message += f", but it is {mistake['ctx']['tag']!r}"
        return message
    message = mistake["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if kind == "value_error":
        return f"{where}: {message}"
    return f"{where}: {message}, but it is {show_wrong_value(mistake['input'])}"


def _find_line(root: yaml.Node, location: Location) -> tuple[int, str]:
    """Return the line and dotted name of the deepest part of `location` that the file has.

    Skip parts that only the validator knows, such as the name of a union's branch.
    """
    node = root
    line = root.start_mark.line + 1
    parts = []
    for part in location:
        child = _find_child(node, part)
        if child is not None:
            node, line = child
            parts.append(part)
    return line, _format_location(parts)


def _find_child(node: yaml.Node, part: int | str) -> tuple[yaml.Node, int] | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        item = node.value[part]
        return item, item.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == part:
                return value, key.start_mark.line + 1
    return None


def _format_location(location: Location) -> str:
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif text:
            text += f".{part}"
        else:
            text = str(part)
    return text


def _find_schema(spec: type[BaseModel], location: Location) -> dict[str, Any]:
    """Return the part of the JSON Schema at this location."""
    schema = _make_schema(spec)
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
            node = _resolve_reference(step, schema)
    return node


@cache
def _make_schema(spec: type[BaseModel]) -> dict[str, Any]:
    return spec.model_json_schema()


def _resolve_reference(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Follow a reference. In a union of one object and simple types, follow the object."""
    if "discriminator" not in node:
        branches = node.get("anyOf", node.get("oneOf", []))
        objects = [branch for branch in branches if "$ref" in branch]
        if len(objects) == 1:
            node = objects[0]
    if "$ref" in node:
        resolved: dict[str, Any] = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
        return resolved
    return node

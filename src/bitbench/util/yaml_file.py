"""YAML that a person wrote, read into a frozen type; every mistake gets its line, its field and what is allowed."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from yaml.composer import ComposerError

from bitbench.util.files import UnreadableFileError, read_text_file
from bitbench.util.text import did_you_mean
from bitbench.util.units import BY_HAND, show_wrong_value

Location = Sequence[int | str]
Parsed = TypeVar("Parsed", bound=BaseModel)

MOST_MISTAKES = 50  # that are told at once; a file with more is of another kind
# What a file may be. A study of 100,000 points (100 engines, 1,000 workloads) has about 15,000 values in 150 kB, five
# levels deep.
LARGEST_FILE_BYTES = 2**20
MOST_NODES = 50_000
DEEPEST = 50
_ENDLESS_NUMBER = re.compile(r"[-+0-9_:.]{100,}")


def read_yaml_text(path: Path, *, missing: str, error: type[Exception]) -> str:
    """The file as text; raises `error`, with `missing` where there is no such file."""
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
    """The checked content; raises `error` with the mistakes found, one per line.

    `name` is what messages call the file; `outline` says what it should hold when it is no mapping at all; `defaults`
    count where it says nothing.
    """
    try:
        _refuse_too_much(text)
        loader = _Loader(text)
        root = loader.get_single_node()
        repeated = list(islice(_repeated_keys(root), MOST_MISTAKES))
        content = loader.construct_document(root) if root is not None and not repeated else None
    except yaml.MarkedYAMLError as problem:
        line = problem.problem_mark.line + 1 if problem.problem_mark else 1
        line = min(
            line, len(text.splitlines()) or 1
        )  # the end of a file may be said to be the line after its last
        context = f"{problem.context}, " if str(problem.problem).startswith("but ") else ""
        raise error(f"{name}:{line}: not valid YAML: {context}{problem.problem}") from problem
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
        raise error(
            "\n".join(f"{name}:{line}: `{key}` is given twice; keep one" for key, line in repeated)
        )
    try:
        return spec.model_validate({**defaults, **(content or {})}, context=BY_HAND)
    except ValidationError as problem:
        raise error("\n".join(_mistakes(problem, root, name, spec))) from problem


def line_of(text: str, location: Location) -> tuple[int, str]:
    """The line of a field in a file that was read before, and its dotted name; empty where the file lacks it."""
    root = yaml.compose(text, Loader=_Loader)
    assert root is not None  # it was read before
    return _line_of(root, location)


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is twenty times faster


def _refuse_too_much(text: str) -> None:
    """Raise a YAMLError for a file that is too deep, or too large with what its aliases stand for."""
    values, begun, sizes = 0, [], dict[str | None, int]()
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
                raise _too_much("a number without end", event)
        if isinstance(event, yaml.CollectionStartEvent):
            begun.append((event.anchor, values))
            sizes[event.anchor] = MOST_NODES  # until it ends: one that contains itself has no end
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = begun.pop()
            sizes[anchor] = values - before + 1
        if len(begun) > DEEPEST:
            raise _too_much(f"more than {DEEPEST} levels within each other", event)
        if values > MOST_NODES:
            raise _too_much(
                f"more than {MOST_NODES:,} values, counting those that aliases stand for", event
            )


def _too_much(problem: str, event: Any) -> ComposerError:
    return ComposerError(None, None, problem, event.start_mark)


def _repeated_keys(node: yaml.Node | None) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _repeated_keys(item)
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):  # another one is refused when it is read
                if key.value in seen:
                    yield key.value, key.start_mark.line + 1
                seen.add(key.value)
            yield from _repeated_keys(value)


def _mistakes(
    problem: ValidationError, root: yaml.Node, name: str, spec: type[BaseModel]
) -> list[str]:
    """A line for each of the first, and one for the others."""
    causes = _causes(problem)
    told = list(
        dict.fromkeys(_describe(mistake, root, name, spec) for mistake in causes[:MOST_MISTAKES])
    )
    more = len(causes) - MOST_MISTAKES
    return [*told, f"{name}: and {more:,} more"] if more > 0 else told


def _causes(problem: ValidationError) -> list[Any]:
    """Without those that follow from others: a list whose only item is wrong counts as empty."""
    mistakes = problem.errors()
    return [
        mistake
        for mistake in mistakes
        if mistake["type"] != "too_short"
        or not any(
            mistake["loc"] == other["loc"][: len(mistake["loc"])]
            for other in mistakes
            if other != mistake
        )
    ]


def _describe(mistake: Any, root: yaml.Node, name: str, spec: type[BaseModel]) -> str:
    location, kind, value = mistake["loc"], mistake["type"], mistake["input"]
    line, field = _line_of(root, location)
    where = f"{name}:{line}: {field}" if field else f"{name}:{line}"
    if kind == "extra_forbidden":
        known = list(_schema_at(spec, location[:-1]).get("properties", {}))
        return f"{where}: unknown field; {did_you_mean(str(location[-1]), known)}known fields: {', '.join(known)}"
    if kind == "missing":
        parent = f" in `{field}`" if field else ""
        return f"{name}:{line}: the field `{location[-1]}` is missing{parent}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tag = mistake["ctx"]["discriminator"].strip("'")
        branches = _schema_at(spec, location).get("discriminator", {}).get("mapping", {})
        given = f", but it is {mistake['ctx']['tag']!r}" if kind == "union_tag_invalid" else ""
        return f"{where}: `{tag}` must be one of {', '.join(branches)}{given}"
    message = mistake["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if kind == "value_error":
        return f"{where}: {message}"
    return f"{where}: {message}, but it is {show_wrong_value(value)}"


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


def _schema_at(spec: type[BaseModel], location: Location) -> dict[str, Any]:
    """The part of the JSON Schema that is about this place."""
    schema = _schema_of(spec)
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


@cache
def _schema_of(spec: type[BaseModel]) -> dict[str, Any]:
    return spec.model_json_schema()


def _resolved(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "discriminator" not in node:  # an object or nothing, an object or a number
        objects = [
            branch for branch in node.get("anyOf", node.get("oneOf", [])) if "$ref" in branch
        ]
        if len(objects) == 1:
            node = objects[0]
    if "$ref" in node:
        resolved: dict[str, Any] = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
        return resolved
    return node

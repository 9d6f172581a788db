"""Settings to be tried: an engine entry whose `args` have lists, or that has `choices`, stands for several engines.

    - engine: llamacpp
      args: {threads: [1, 2], ubatch-size: 256}
      choices: {kv: {f16: {}, q8: {cache-type-k: q8_0, cache-type-v: q8_0}}}

is four engines, `llamacpp threads=1 kv=f16` to `llamacpp threads=2 kv=q8`. A list is for one argument, a choice for
several that belong together; `null` in a list stands for the argument not being given.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

MOST_SETTINGS = 10_000  # of one entry: each becomes an engine of the study


def spread_engines(entries: object) -> object:
    """The same list with an entry for each combination. What is no list of entries is left to the reader to refuse.

    The first combination of an entry stays in its place, so that a mistake in it is found in its line of the file; the
    others follow behind all entries.
    """
    if not isinstance(entries, list | tuple):
        return entries
    spread = [list(_settings(entry)) for entry in entries]
    return [*(settings[0] for settings in spread), *(one for settings in spread for one in settings[1:])]


def _settings(entry: Any) -> Iterator[Any]:
    if not isinstance(entry, Mapping):
        yield entry
        return
    axes = [*_lists(entry.get("args")), *_choices(entry.get("choices"))]
    if not axes:
        yield {field: value for field, value in entry.items() if field != "choices"}
        return
    count = 1
    for _, alternatives in axes:
        count *= len(alternatives)
    if count > MOST_SETTINGS:
        raise ValueError(f"its lists and choices are {count:,} combinations; at most {MOST_SETTINGS:,}")
    fixed = {name: value for name, value in (entry.get("args") or {}).items() if not isinstance(value, list)}
    name = entry.get("name") or entry.get("engine") or "null"
    for combination in product(*(alternatives.items() for _, alternatives in axes)):
        args = dict(fixed)
        for _, chosen in combination:
            args.update(chosen)
        words = [f"{axis}={label}" for (axis, _), (label, _) in zip(axes, combination, strict=True)]
        yield {
            **{field: value for field, value in entry.items() if field != "choices"},
            "name": " ".join([str(name), *words]),
            "args": args,
        }


Axis = tuple[str, dict[str, dict[str, Any]]]  # its name; by a label, the arguments of each alternative


def _lists(args: object) -> Iterator[Axis]:
    for name, values in args.items() if isinstance(args, Mapping) else ():
        if isinstance(values, list):
            yield str(name), _labelled(str(name), values)


def _labelled(name: str, values: list[Any]) -> dict[str, dict[str, Any]]:
    if not values:
        raise ValueError(f"args.{name}: the list of values to try is empty")
    labels = ["default" if value is None else _label(value) for value in values]
    if len(set(labels)) < len(labels):
        raise ValueError(f"args.{name}: a value is listed twice")
    return {label: {} if value is None else {name: value} for label, value in zip(labels, values, strict=True)}


def _label(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _choices(choices: object) -> Iterator[Axis]:
    if choices is None:
        return
    if not isinstance(choices, Mapping):
        raise ValueError("choices are a mapping, such as {kv: {f16: {}, q8: {cache-type-k: q8_0}}}")
    for axis, alternatives in choices.items():
        if not isinstance(alternatives, Mapping) or not alternatives:
            raise ValueError(f"choices.{axis} is a mapping from a name to arguments, such as {{f16: {{}}}}")
        for label, args in alternatives.items():
            if not isinstance(args, Mapping):
                raise ValueError(f"choices.{axis}.{label} are arguments, such as {{}} or {{threads: 2}}")
        yield str(axis), {_label(label): dict(args) for label, args in alternatives.items()}

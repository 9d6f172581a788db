"""What a reader takes out of a file: runs, and what has to be said about them."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from bitbench.features.interop.readers.text import measurable
from bitbench.features.interop.readers.vendor_profile import ProfileTable
from bitbench.features.interop.types import ImportFileError
from bitbench.records.published import PublishedKernel
from bitbench.records.trial import InstanceFacts, Memory, TrialMetrics
from bitbench.study.arrival import AnyArrival, Batch, ClosedLoop
from bitbench.study.base import Json
from bitbench.study.study import EngineSetup
from bitbench.study.workload import BUILT_IN_WORKLOADS, ShapePart, Workload

LONGEST_NAME = 60  # of a workload; what core.asked.workload allows, with room for a number
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.+-]+")


@dataclass(frozen=True)
class ImportedRun:
    """One run of a point. What the file does not say is None or left at its default."""

    variant: str
    engine: EngineSetup
    workload: Workload
    metrics: TrialMetrics
    memory: Memory = field(default_factory=Memory)
    facts: InstanceFacts = field(default_factory=InstanceFacts)
    requests: int = 0
    weight_bytes: int | None = None
    model: str | None = None  # where the file tells it from the recipe: `variant` is then model/recipe
    started_at: str | None = None
    duration_s: float | None = None
    cause: str | None = None  # why it has no figures


@dataclass
class Reading:
    runs: list[ImportedRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    host: dict[str, Json] = field(default_factory=dict)  # as `HostFacts` spells it, as far as it is known
    kernels: list[PublishedKernel] = field(default_factory=list)
    profile: ProfileTable | None = None


def plain_name(text: str, fallback: str) -> str:
    """What core allows as the name of a workload or a study."""
    name = _NOT_IN_A_NAME.sub("-", text).strip("-._+")
    return name[:LONGEST_NAME].rstrip("-._+") or fallback


def workload(
    *,
    concurrency: int | None,
    input_tokens: int | None,
    output_tokens: int | None,
    requests: int | None = None,
    name: str | None = None,
    rate: float | None = None,
) -> Workload:
    """A shape of which some may be unknown. `rate`: requests per second where they were sent on a schedule."""
    parts: dict[ShapePart, int | None] = {
        "concurrency": concurrency,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
    }
    unknown: list[ShapePart] = [part for part, value in parts.items() if not value]
    known = {part: value or 1 for part, value in parts.items()}
    arrival: AnyArrival = Batch()
    count = None
    if rate is not None:
        unknown.append("arrival")
    if requests is None:
        unknown += ["arrival", "requests"] if "concurrency" in unknown else []
    elif requests > known["concurrency"]:
        arrival, count = ClosedLoop(), requests
    else:
        known["concurrency"] = requests if concurrency else known["concurrency"]
    made = Workload(
        name="x",
        concurrency=known["concurrency"],
        input_tokens=known["input_tokens"],
        output_tokens=known["output_tokens"],
        arrival=arrival,
        requests=count,
        unknown=tuple(unknown),
    )
    return made.model_copy(update={"name": name or _name(made, rate)})


def _name(shape: Workload, rate: float | None) -> str:
    """The built-in name of a shape, or its numbers."""
    for built_in in BUILT_IN_WORKLOADS.values():
        if built_in == shape.model_copy(update={"name": built_in.name}):
            return built_in.name
    parts = [
        ("c", "concurrency", shape.concurrency),
        ("in", "input_tokens", shape.input_tokens),
        ("out", "output_tokens", shape.output_tokens),
    ]
    numbers = [f"{letter}{value}" for letter, part, value in parts if part not in shape.unknown]
    numbers += [f"rate{rate:g}"] if rate is not None else []
    return plain_name("-".join(numbers), "unspecified")


def one_object(text: str, tool: str, needed: Sequence[str]) -> Mapping[str, Json]:
    """A JSON object that has all `needed` keys."""
    found = objects(text, tool, needed)
    if len(found) != 1:
        raise ImportFileError(f"the file contains {len(found)} JSON objects; {tool} writes one per file")
    return found[0]


def objects(text: str, tool: str, needed: Sequence[str]) -> list[Mapping[str, Json]]:
    """The objects of a JSON file, of a JSON array, or of one object per line."""
    try:
        content = _parsed(text)
    except json.JSONDecodeError:
        content = [_line(line, number, tool) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    found = content if isinstance(content, list) else [content]
    for result in found:
        missing = [key for key in needed if not isinstance(result, Mapping) or key not in result]
        if missing:
            raise ImportFileError(f"this is not a result of {tool}: it lacks {', '.join(missing)}")
    if not found:
        raise ImportFileError(f"this is not a result of {tool}: it is empty")
    return found


def _parsed(text: str) -> Json:
    """JSON can hold halves of characters (`\\ud800`), which no file can be written with."""
    content = json.loads(text)
    if not _HALF.search(text):
        return content
    return json.loads(json.dumps(content, ensure_ascii=False).encode("utf-8", "replace"))


def _line(line: str, number: int, tool: str) -> Json:
    try:
        return _parsed(line)
    except json.JSONDecodeError as error:
        raise ImportFileError(f"line {number} is not JSON ({error.msg}); {tool} writes one object per line") from error


def at(content: Json, *path: str) -> Json:
    """What lies at the end of nested keys; None where one is missing."""
    for key in path:
        if not isinstance(content, Mapping):
            return None
        content = content.get(key)
    return content


def number(value: Json, factor: float = 1.0) -> float | None:
    """A positive number × factor; the tools write 0, NaN or infinity for what they did not measure."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < inf:
        return None
    return measurable(value) * factor


def text_or_none(value: Json) -> str | None:
    return value.strip() or None if isinstance(value, str) else None


def whole(value: Json) -> int | None:
    known = number(value)
    return None if known is None else round(known)


def words(value: Json, fallback: str) -> str:
    return value if isinstance(value, str) and value.strip() else fallback

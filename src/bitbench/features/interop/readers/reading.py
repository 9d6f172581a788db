"""What a reader takes out of a file of one of the tools: runs, what has to be said about them; text as it was
meant."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from math import inf

from bitbench.records.trial import InstanceFacts, Memory, TrialMetrics
from bitbench.study.base import Json
from bitbench.study.study import EngineSetup
from bitbench.study.workload import (
    BUILT_IN_WORKLOADS,
    AnyArrival,
    Batch,
    ClosedLoop,
    ShapePart,
    Workload,
)
from bitbench.util.errors import BitbenchError, ExitCode


class ImportFileError(BitbenchError):
    """A result file has another format than given, or contains no results."""

    exit_code = ExitCode.REFUSED


class Tool(StrEnum):
    """As `bitbench import --from` spells it."""

    PUBLISHED_TABLE = (
        "published-table"  # tables as vendors and projects publish them beside their models
    )
    SGLANG = "sglang"
    VLLM = "vllm"
    GUIDELLM = "guidellm"
    AIPERF = "aiperf"
    LLAMA_BENCH = "llama-bench"


class ImportedStarts(StrEnum):
    """What a start of the engine was: the files do not say, and intervals depend on it."""

    PER_FILE = "per-file"
    PER_RUN = "per-run"
    ONE = "one"


SMALLEST, LARGEST = 1e-18, 1e18  # of any figure, in any unit


def imported_tables(text: str) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Each Markdown or grid table with the lines before it: its rows of cells, the titles first, without its rules."""
    before: list[str] = []
    for is_table, block in groupby(
        text.split("\n"), key=lambda line: line.lstrip().startswith(("|", "+"))
    ):
        lines = [line.strip() for line in block]
        if not is_table:
            before = lines
        elif rows := [line.strip("|").split("|") for line in lines if set(line) - set("|+-=: ")]:
            yield before, [[cell.strip() for cell in row] for row in rows]


_OWNER = re.compile(
    r"^- (\S+)\s*$|^The environment of the evaluation with (?:huggingface )?(\S+) is:"
)
_DEVICE = re.compile(r"^- Device: (.+)$|^-\s++(NVIDIA .+)$")
_PACKAGE = re.compile(r"^\s*+-\s++(.+) (\S+)\s*$")


def imported_versions(lines: Sequence[str]) -> tuple[dict[str, dict[str, str]], str | None]:
    """Versions of packages by engine, as lists beside tables name them, and the first device."""
    versions: dict[str, dict[str, str]] = {}
    device, owner = None, ""
    for line in lines:
        if match := _DEVICE.match(line):
            device = device or (match[1] or match[2]).strip()
        elif match := _OWNER.match(line):
            owner = (match[1] or match[2]).lower()
        elif line.startswith(("Note", "#")):
            owner = ""
        elif owner and (match := _PACKAGE.match(line)):
            versions.setdefault(owner, {})[match[1]] = match[2]
    return versions, device


def imported_facts(
    versions: Mapping[str, dict[str, str]], engine: str, kernels: tuple[str, ...] = ()
) -> InstanceFacts:
    packages = versions.get(engine.lower(), {})
    version = next(
        (value for name, value in packages.items() if name.lower() == engine.lower()), None
    )
    return InstanceFacts(engine_version=version, versions=packages, kernels=kernels)


def imported_figure(text: str) -> float | None:
    """`1,526.74 tok/s` → 1526.74; None for `N/A`, `-` and 0.00, which stands for "not measured"."""
    found = re.match(r"\s*([0-9][0-9,]*\.?[0-9]*)", text)
    value = float(found.group(1).replace(",", "")) if found else 0.0
    return plausible_imported_number(value) if value else None


def plausible_imported_number(value: float) -> float:
    """Raises ImportFileError for what nothing can measure, and sums and squares could not hold."""
    if not SMALLEST <= value <= LARGEST:
        raise ImportFileError("it contains a number that is too large or too small for any figure")
    return float(value)


LONGEST_NAME = 60  # of a workload; what `Workload` allows, with room for a number
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
    model: str | None = (
        None  # where the file tells it from the recipe: `variant` is then model/recipe
    )
    started_at: str | None = None
    duration_s: float | None = None
    cause: str | None = None  # why it has no figures


@dataclass
class Reading:
    runs: list[ImportedRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    host: dict[str, Json] = field(
        default_factory=dict
    )  # as `HostFacts` spells it, as far as it is known


def imported_name(text: str, fallback: str) -> str:
    """What core allows as the name of a workload or a study."""
    name = _NOT_IN_A_NAME.sub("-", text).strip("-._+")
    return name[:LONGEST_NAME].rstrip("-._+") or fallback


def imported_workload(
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
    return imported_name("-".join(numbers), "unspecified")


def imported_json_objects(text: str, tool: str, needed: Sequence[str]) -> list[Mapping[str, Json]]:
    """The objects of a JSON file, of a JSON array, or of one object per line; each has all `needed` keys."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError:
        content = [
            _line(line, number, tool)
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip()
        ]
    found = content if isinstance(content, list) else [content]
    for result in found:
        missing = [key for key in needed if not isinstance(result, Mapping) or key not in result]
        if missing:
            raise ImportFileError(f"this is not a result of {tool}: it lacks {', '.join(missing)}")
    if not found:
        raise ImportFileError(f"this is not a result of {tool}: it is empty")
    return found


def _line(line: str, number: int, tool: str) -> Json:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ImportFileError(
            f"line {number} is not JSON ({error.msg}); {tool} writes one object per line"
        ) from error


def imported_field(content: Json, path: str) -> Json:
    """What lies at the end of nested keys, as in `a.b.0`; None where one is missing."""
    for key in path.split("."):
        if isinstance(content, list) and key.removeprefix("-").isdigit():
            content = next(iter(content[int(key) :]), None)
        else:
            content = content.get(key) if isinstance(content, Mapping) else None
    return content


def imported_number(value: Json, factor: float = 1.0) -> float | None:
    """A positive number × factor; the tools write 0, NaN or infinity for what they did not measure."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < inf:
        return None
    return plausible_imported_number(value) * factor


def imported_text(value: Json) -> str | None:
    return value.strip() or None if isinstance(value, str) else None


def imported_count(value: Json) -> int | None:
    known = imported_number(value)
    return None if known is None else round(known)

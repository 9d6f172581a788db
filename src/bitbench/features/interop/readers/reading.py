"""The runs and notes that a reader extracts from a file, and functions that parse their parts."""

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
    """The tools of `bitbench import --from`."""

    PUBLISHED_TABLE = "published-table"  # tables that vendors and projects publish with models
    SGLANG = "sglang"
    VLLM = "vllm"
    GUIDELLM = "guidellm"
    AIPERF = "aiperf"
    LLAMA_BENCH = "llama-bench"


class ImportedStarts(StrEnum):
    """The runs that share a start of the engine, on which intervals depend. Files do not say it."""

    PER_FILE = "per-file"
    PER_RUN = "per-run"
    ONE = "one"


SMALLEST = 1e-18  # of any metric, in any unit
LARGEST = 1e18


def iter_tables(text: str) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Yield each Markdown or grid table: the lines before it, and its rows of cells.

    The first row has the titles. Lines that only separate rows are left out.
    """
    before: list[str] = []
    for is_table, block in groupby(text.split("\n"), key=_is_table_line):
        lines = [line.strip() for line in block]
        if not is_table:
            before = lines
            continue
        rows = [_split_cells(line) for line in lines if set(line) - set("|+-=: ")]
        if rows:
            yield before, rows


def _is_table_line(line: str) -> bool:
    return line.lstrip().startswith(("|", "+"))


def _split_cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


_OWNER = re.compile(
    r"^- (\S+)\s*$|^The environment of the evaluation with (?:huggingface )?(\S+) is:"
)
_DEVICE = re.compile(r"^- Device: (.+)$|^-\s++(NVIDIA .+)$")
_PACKAGE = re.compile(r"^\s*+-\s++(.+) (\S+)\s*$")


def find_versions(lines: Sequence[str]) -> tuple[dict[str, dict[str, str]], str | None]:
    """Return the package versions by engine, from the lists near tables, and the first device."""
    versions: dict[str, dict[str, str]] = {}
    device = None
    owner = ""
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


def find_engine_facts(
    versions: Mapping[str, dict[str, str]], engine: str, kernels: tuple[str, ...] = ()
) -> InstanceFacts:
    """Return the package versions of an engine, and the version of the engine itself."""
    packages = versions.get(engine.lower(), {})
    own_versions = [value for name, value in packages.items() if name.lower() == engine.lower()]
    version = next(iter(own_versions), None)
    return InstanceFacts(engine_version=version, versions=packages, kernels=kernels)


def parse_metric(text: str) -> float | None:
    """Parse a number with a unit: `1,526.74 tok/s` is 1526.74.

    Return None for `N/A`, `-` and 0.00, which means "not measured".
    """
    match = re.match(r"\s*([0-9][0-9,]*\.?[0-9]*)", text)
    value = float(match.group(1).replace(",", "")) if match else 0.0
    return check_number(value) if value else None


def check_number(value: float) -> float:
    """Return the number. Raise ImportFileError if no metric can have it.

    Sums and squares of larger numbers might overflow.
    """
    if not SMALLEST <= value <= LARGEST:
        raise ImportFileError("it contains a number that is too large or too small for any figure")
    return float(value)


LONGEST_NAME = 60  # of a workload: the limit of `Workload`, less a few characters for a number
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.+-]+")


@dataclass(frozen=True)
class ImportedRun:
    """A run of a point. Values that the file does not contain keep their defaults."""

    variant: str
    engine: EngineSetup
    workload: Workload
    metrics: TrialMetrics
    memory: Memory = field(default_factory=Memory)
    facts: InstanceFacts = field(default_factory=InstanceFacts)
    requests: int = 0
    weight_bytes: int | None = None
    model: str | None = None  # if the file names it apart from the recipe: variant = model/recipe
    started_at: str | None = None
    duration_s: float | None = None
    cause: str | None = None  # why it has no metrics


@dataclass
class Reading:
    """The content of one file."""

    runs: list[ImportedRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    host: dict[str, Json] = field(default_factory=dict)  # known fields of `HostFacts`


def make_valid_name(text: str, fallback: str) -> str:
    """Return a valid name of a workload or a study, or `fallback` if no character is valid."""
    name = _NOT_IN_A_NAME.sub("-", text).strip("-._+")
    return name[:LONGEST_NAME].rstrip("-._+") or fallback


def make_imported_workload(
    *,
    concurrency: int | None,
    input_tokens: int | None,
    output_tokens: int | None,
    requests: int | None = None,
    name: str | None = None,
    rate: float | None = None,
) -> Workload:
    """Return a workload whose shape may be unknown in parts.

    `rate` is requests per second if they were sent on a schedule. Without `name`, the workload is
    named by its shape.
    """
    parts: dict[ShapePart, int | None] = {
        "concurrency": concurrency,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
    }
    unknown: list[ShapePart] = [part for part, value in parts.items() if not value]
    streams = concurrency or 1
    arrival: AnyArrival = Batch()
    count = None
    if rate is not None:
        unknown.append("arrival")
    if requests is None:
        if "concurrency" in unknown:
            unknown += ["arrival", "requests"]
    elif requests > streams:
        arrival = ClosedLoop()
        count = requests
    elif concurrency:
        streams = requests
    workload = Workload(
        name="x",
        concurrency=streams,
        input_tokens=input_tokens or 1,
        output_tokens=output_tokens or 1,
        arrival=arrival,
        requests=count,
        unknown=tuple(unknown),
    )
    return workload.model_copy(update={"name": name or _format_name(workload, rate)})


def _format_name(shape: Workload, rate: float | None) -> str:
    """Return the name of the built-in workload with this shape, or the numbers of the shape."""
    for built_in in BUILT_IN_WORKLOADS.values():
        if built_in == shape.model_copy(update={"name": built_in.name}):
            return built_in.name
    numbers = []
    if "concurrency" not in shape.unknown:
        numbers.append(f"c{shape.concurrency}")
    if "input_tokens" not in shape.unknown:
        numbers.append(f"in{shape.input_tokens}")
    if "output_tokens" not in shape.unknown:
        numbers.append(f"out{shape.output_tokens}")
    if rate is not None:
        numbers.append(f"rate{rate:g}")
    return make_valid_name("-".join(numbers), "unspecified")


def parse_json_objects(text: str, tool: str, needed: Sequence[str]) -> list[Mapping[str, Json]]:
    """Return the objects of a file: one JSON object, a JSON array, or one object per line.

    Raise ImportFileError if none exist, or if one lacks a needed key.
    """
    try:
        content = json.loads(text)
    except json.JSONDecodeError:
        content = []
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                content.append(_parse_line(line, number, tool))
    results = content if isinstance(content, list) else [content]
    for result in results:
        missing = [key for key in needed if not isinstance(result, Mapping) or key not in result]
        if missing:
            raise ImportFileError(f"this is not a result of {tool}: it lacks {', '.join(missing)}")
    if not results:
        raise ImportFileError(f"this is not a result of {tool}: it is empty")
    return results


def _parse_line(line: str, number: int, tool: str) -> Json:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ImportFileError(
            f"line {number} is not JSON ({error.msg}); {tool} writes one object per line"
        ) from error


def find_nested_value(content: Json, path: str) -> Json:
    """Return the value at the end of nested keys, as in `a.b.0`, or None if a key is missing."""
    for key in path.split("."):
        if isinstance(content, list) and key.removeprefix("-").isdigit():
            content = next(iter(content[int(key) :]), None)
        elif isinstance(content, Mapping):
            content = content.get(key)
        else:
            return None
    return content


def parse_number(value: Json, factor: float = 1.0) -> float | None:
    """Return a positive number × factor. Tools write 0, NaN or infinity if they did not measure."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < inf:
        return None
    return check_number(value) * factor


def parse_text(value: Json) -> str | None:
    """Return the text without spaces around it, or None if it is empty or not a text."""
    if not isinstance(value, str):
        return None
    return value.strip() or None


def parse_count(value: Json) -> int | None:
    """Return a positive number as a whole one, or None if it was not measured."""
    number = parse_number(value)
    return None if number is None else round(number)

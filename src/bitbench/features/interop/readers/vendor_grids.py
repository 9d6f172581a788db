"""reStructuredText with grid tables: speed and memory by model, input length, quantization and number of GPUs.

A cell that is empty continues the one above it. What a table is about stands in the line before it, such as
`-  7B (vLLM)`; what `[Setting 1]` means, in a list at the end.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from bitbench.features.interop.readers.reading import (
    ImportedRun,
    Reading,
    imported_figure,
    imported_row_cells,
    imported_workload,
)
from bitbench.records.trial import InstanceFacts, Memory, TrialMetrics
from bitbench.study.study import Argument, EngineSetup

_TITLE = re.compile(r"^-\s+(\S+) \((\S+)\)\s*$")
_SETTING = re.compile(r"^\s*\*\s*\[(.+?)\]=\((.+)\)")
_ENVIRONMENT = re.compile(r"^The environment of the evaluation with (?:huggingface )?(\S+) is:")
_ENGINES = {"transformer": "transformers", "vllm": "vllm"}
_OUTPUT_TOKENS = re.compile(r"generating (\d+) tokens")
_THROUGHPUT_SHAPE = re.compile(r"--input-len (\d+) --output-len (\d+)")
_BYTES_PER_GB = 10**9
DEFAULT_SETTING = "Default Setting"

Row = dict[str, str]


@dataclass(frozen=True)
class _Table:
    title: str
    engine: str
    rows: tuple[Row, ...]


def has_vendor_grids(text: str) -> bool:
    return "+====" in text


def read(text: str) -> Reading:
    lines = text.split("\n")
    versions, devices = _environments(lines)
    settings = {match.group(1): match.group(2) for line in lines if (match := _SETTING.match(line))}
    length = match.group(1) if (match := _OUTPUT_TOKENS.search(text)) else None
    reading = Reading(host={"accelerators": [{"name": devices[0]}]} if devices else {})
    for table in _tables(lines):
        rows, repeated = _without_repeats(table.rows)
        reading.notes += [f"{table.title}: {note}" for note in repeated]
        facts = _facts(versions.get(table.engine, {}), table.engine)
        for row in rows:
            if "# Prompts" in row:
                reading.runs.append(_throughput_run(row, table, text, facts))
            else:
                reading.runs.append(_speed_run(row, table, settings, length, facts))
    reading.notes.append("One run per point: its spread is unknown.")
    if any(run.metrics.request_throughput for run in reading.runs):
        reading.notes.append("Output throughput of the throughput tables is requests per second × output length.")
    return reading


def _tables(lines: list[str]) -> Iterator[_Table]:
    title, engine, header = "", "", None
    rows: list[Row] = []
    previous: list[str] = []
    for place, line in enumerate(lines):
        if match := _TITLE.match(line):
            title, engine = line.lstrip("- ").strip(), _ENGINES.get(match.group(2).lower(), match.group(2))
        if not line.startswith(("|", "+")):
            if header and rows:
                yield _Table(title, engine, tuple(rows))
            header, rows, previous = None, [], []
        elif line.startswith("|") and place + 1 < len(lines) and lines[place + 1].startswith("+="):
            header = imported_row_cells(line)
        elif line.startswith("|") and header:
            cells = imported_row_cells(line)
            filled = [cell or (previous[column] if previous else "") for column, cell in enumerate(cells)]
            previous = filled
            rows.append(dict(zip(header, filled, strict=False)))


def _without_repeats(rows: tuple[Row, ...]) -> tuple[list[Row], list[str]]:
    counts = Counter(tuple(row.items()) for row in rows)
    repeated = [dict(row) for row, count in counts.items() if count > 1]
    if not repeated:
        return list(rows), []
    lengths = ", ".join(dict.fromkeys(row.get("Input Length", "?") for row in repeated))
    return [dict(row) for row in counts], [
        f"{len(repeated)} rows (input length {lengths}) are printed twice; they are kept once."
    ]


def _speed_run(
    row: Row, table: _Table, settings: dict[str, str], output_tokens: str | None, facts: InstanceFacts
) -> ImportedRun:
    gpus = row.get("GPU Num", "")
    chosen = row.get("Setting", "").strip("[]- ")
    name = f"{table.engine}, {gpus} GPU{'s' if gpus != '1' else ''}"
    name += f", {chosen}" if chosen else ""
    arguments = _arguments(settings.get(chosen or DEFAULT_SETTING, "")) if table.engine == "vllm" else {}
    gigabytes = imported_figure(row.get("GPU Memory(GB)", ""))
    return ImportedRun(
        f"{row['Model']}/{row['Quantization']}",
        EngineSetup(name=name, engine=table.engine, args={"gpus": int(gpus), **arguments} if gpus else arguments),
        imported_workload(
            concurrency=1,
            input_tokens=int(row["Input Length"]),
            output_tokens=int(output_tokens) if output_tokens else None,
        ),
        TrialMetrics(output_throughput=imported_figure(row["Speed(tokens/s)"])),
        memory=Memory(device_peak_bytes=round(gigabytes * _BYTES_PER_GB) if gigabytes else None),
        facts=facts,
        requests=1,
        model=row["Model"],
    )


def _throughput_run(row: Row, table: _Table, text: str, facts: InstanceFacts) -> ImportedRun:
    match = _THROUGHPUT_SHAPE.search(text)
    tokens_in, tokens_out = (int(part) for part in match.groups()) if match else (None, None)
    prompts, rate = int(row["# Prompts"]), imported_figure(row["QPS"])
    return ImportedRun(
        f"{row['Model']}/{row['Quantization']}",
        EngineSetup(name=f"{table.engine}, throughput script", engine=table.engine),
        imported_workload(concurrency=prompts, input_tokens=tokens_in, output_tokens=tokens_out),
        TrialMetrics(
            request_throughput=rate,
            overall_throughput=imported_figure(row["Tokens/s"]),
            output_throughput=rate * tokens_out if rate and tokens_out else None,
        ),
        facts=facts,
        requests=prompts,
        model=row["Model"],
    )


def _arguments(text: str) -> dict[str, Argument]:
    pairs = [part.split("=", 1) for part in text.split() if "=" in part]
    return {name: value for name, value in pairs}  # noqa: C416  # dict(pairs) would be one of strings only


def _environments(lines: list[str]) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Versions by engine, and the devices."""
    found: dict[str, dict[str, str]] = {}
    devices: list[str] = []
    engine = ""
    for line in lines:
        if match := _ENVIRONMENT.match(line):
            engine = match.group(1).lower()
        elif line.startswith("Note"):
            engine = ""
        elif engine and (match := re.match(r"^-\s++(.+) (\S+)\s*$", line)):
            if match.group(1).startswith("NVIDIA"):
                devices.append(line.lstrip("- ").strip())
            else:
                found.setdefault(engine, {})[match.group(1)] = match.group(2)
    return found, devices


def _facts(packages: dict[str, str], engine: str) -> InstanceFacts:
    version = next((value for name, value in packages.items() if name.lower() == engine), None)
    return InstanceFacts(engine_version=version, versions=packages)

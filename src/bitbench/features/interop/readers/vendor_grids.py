"""reStructuredText with grid tables: speed and memory by model, input length, quantization and number of GPUs.

A cell that is empty continues the one above it. What a table is about stands in the line before it, such as
`-  7B (vLLM)`; what `[Setting 1]` means, in a list at the end.
"""

import re
from collections import Counter
from dataclasses import dataclass

from bitbench.features.interop.readers.reading import (
    ImportedRun,
    Reading,
    imported_figure,
    imported_tables,
    imported_workload,
)
from bitbench.records.trial import InstanceFacts, Memory, TrialMetrics
from bitbench.study.study import Argument, EngineSetup

_TITLE = re.compile(r"^-\s+(\S+ \((\S+)\))$")
_SETTING = re.compile(r"^\s*\*\s*\[(.+?)\]=\((.+)\)")
_ENVIRONMENT = re.compile(r"^The environment of the evaluation with (?:huggingface )?(\S+) is:")
_PACKAGE = re.compile(r"^-\s++(.+) (\S+)\s*$")
_ENGINES = {"transformer": "transformers", "vllm": "vllm"}
_OUTPUT_TOKENS = re.compile(r"generating (\d+) tokens")
_THROUGHPUT_SHAPE = re.compile(r"--input-len (\d+) --output-len (\d+)")
_BYTES_PER_GB = 10**9
DEFAULT_SETTING = "Default Setting"

Row = dict[str, str]


@dataclass(frozen=True)
class _Text:
    """What the text around the tables says of all of them."""

    settings: dict[str, str]  # `* [Setting 1]=(max_model_len=4096 …)`, by name
    output_tokens: int | None
    throughput: tuple[int | None, int | None]  # tokens in and out of the throughput script


def has_vendor_grids(text: str) -> bool:
    return "+====" in text


def read(text: str) -> Reading:
    lines = text.split("\n")
    versions, devices = _environments(lines)
    around = _around(text, lines)
    reading = Reading(host={"accelerators": [{"name": devices[0]}]} if devices else {})
    title, engine = "", ""
    for before, cells in imported_tables(text):
        for match in filter(None, map(_TITLE.match, before)):
            title, engine = match[1], _ENGINES.get(match[2].lower(), match[2])
        rows, repeated = _without_repeats(_rows(cells))
        if repeated:
            lengths = ", ".join(dict.fromkeys(row.get("Input Length", "?") for row in repeated))
            reading.notes.append(
                f"{title}: {len(repeated)} rows (input length {lengths}) are printed twice; they are kept once."
            )
        packages = versions.get(engine, {})
        version = next((value for name, value in packages.items() if name.lower() == engine), None)
        facts = InstanceFacts(engine_version=version, versions=packages)
        run_of = _throughput_run if "# Prompts" in cells[0] else _speed_run
        reading.runs += [run_of(row, engine, around, facts) for row in rows]
    reading.notes.append("One run per point: its spread is unknown.")
    if any(run.metrics.request_throughput for run in reading.runs):
        reading.notes.append("Output throughput of the throughput tables is requests per second × output length.")
    return reading


def _rows(cells: list[list[str]]) -> list[Row]:
    """The rows by title; an empty cell continues the one above it."""
    titles, *lines = cells
    rows: list[Row] = []
    for line in lines:
        above = rows[-1] if rows else {}
        rows.append({title: cell or above.get(title, "") for title, cell in zip(titles, line, strict=False)})
    return rows


def _without_repeats(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """Each once, and those that are printed more often."""
    counts = Counter(tuple(row.items()) for row in rows)
    return list(map(dict, counts)), [dict(row) for row, count in counts.items() if count > 1]


def _speed_run(row: Row, engine: str, around: _Text, facts: InstanceFacts) -> ImportedRun:
    gpus = row.get("GPU Num", "")
    chosen = row.get("Setting", "").strip("[]- ")
    parts = [engine, f"{gpus} GPU{'s' if gpus != '1' else ''}", chosen]
    args: dict[str, Argument] = {"gpus": int(gpus)} if gpus else {}
    if engine == "vllm":
        said = around.settings.get(chosen or DEFAULT_SETTING, "").split()
        args |= {name: value for name, equals, value in (part.partition("=") for part in said) if equals}
    gigabytes = imported_figure(row.get("GPU Memory(GB)", ""))
    return ImportedRun(
        f"{row['Model']}/{row['Quantization']}",
        EngineSetup(name=", ".join(filter(None, parts)), engine=engine, args=args),
        imported_workload(concurrency=1, input_tokens=int(row["Input Length"]), output_tokens=around.output_tokens),
        TrialMetrics(output_throughput=imported_figure(row["Speed(tokens/s)"])),
        memory=Memory(device_peak_bytes=round(gigabytes * _BYTES_PER_GB) if gigabytes else None),
        facts=facts,
        requests=1,
        model=row["Model"],
    )


def _throughput_run(row: Row, engine: str, around: _Text, facts: InstanceFacts) -> ImportedRun:
    tokens_in, tokens_out = around.throughput
    prompts, rate = int(row["# Prompts"]), imported_figure(row["QPS"])
    return ImportedRun(
        f"{row['Model']}/{row['Quantization']}",
        EngineSetup(name=f"{engine}, throughput script", engine=engine),
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


def _around(text: str, lines: list[str]) -> _Text:
    output, script = _OUTPUT_TOKENS.search(text), _THROUGHPUT_SHAPE.search(text)
    return _Text(
        {match[1]: match[2] for line in lines if (match := _SETTING.match(line))},
        int(output[1]) if output else None,
        (int(script[1]), int(script[2])) if script else (None, None),
    )


def _environments(lines: list[str]) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Versions by engine, and the devices."""
    found: dict[str, dict[str, str]] = {}
    devices: list[str] = []
    engine = ""
    for line in lines:
        if match := _ENVIRONMENT.match(line):
            engine = match[1].lower()
        elif line.startswith("Note"):
            engine = ""
        elif engine and (match := _PACKAGE.match(line)):
            if match[1].startswith("NVIDIA"):
                devices.append(line.lstrip("- ").strip())
            else:
                found.setdefault(engine, {})[match[1]] = match[2]
    return found, devices

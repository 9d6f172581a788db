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
    imported_facts,
    imported_figure,
    imported_tables,
    imported_versions,
    imported_workload,
)
from bitbench.records.trial import InstanceFacts, Memory, TrialMetrics
from bitbench.study.study import Argument, EngineSetup

_TITLE = re.compile(r"^-\s+(\S+ \((\S+)\))$")
_SETTING = re.compile(r"^\s*\*\s*\[(.+?)\]=\((.+)\)")
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


def matches(text: str) -> bool:
    return "+====" in text


def read(text: str) -> Reading:
    lines = text.split("\n")
    versions, device = imported_versions(lines)
    around = _around(text, lines)
    reading = Reading(host={"accelerators": [{"name": device}]} if device else {})
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
        facts = imported_facts(versions, engine)
        reading.runs += [_run(row, engine, around, facts) for row in rows]
    reading.notes.append("One run per point: its spread is unknown.")
    if any(run.metrics.request_throughput for run in reading.runs):
        reading.notes.append(
            "Output throughput of the throughput tables is requests per second × output length."
        )
    return reading


def _rows(cells: list[list[str]]) -> list[Row]:
    """The rows by title; an empty cell continues the one above it."""
    titles, *lines = cells
    rows: list[Row] = []
    for line in lines:
        above = rows[-1] if rows else {}
        rows.append(
            {title: cell or above.get(title, "") for title, cell in zip(titles, line, strict=False)}
        )
    return rows


def _without_repeats(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """Each once, and those that are printed more often."""
    counts = Counter(tuple(row.items()) for row in rows)
    return list(map(dict, counts)), [dict(row) for row, count in counts.items() if count > 1]


def _run(row: Row, engine: str, around: _Text, facts: InstanceFacts) -> ImportedRun:
    """A row of a table of speed, or of one of the throughput script."""
    setup = _setup(row, engine, around)
    tokens_in, tokens_out = int(row.get("Input Length") or 0) or None, around.output_tokens
    prompts, rate = int(row.get("# Prompts") or 1), imported_figure(row.get("QPS", ""))
    speed = imported_figure(row.get("Speed(tokens/s)", ""))
    if "# Prompts" in row:
        setup = EngineSetup(name=f"{engine}, throughput script", engine=engine)
        tokens_in, tokens_out = around.throughput
        speed = rate * tokens_out if rate and tokens_out else None
    gigabytes = imported_figure(row.get("GPU Memory(GB)", ""))
    return ImportedRun(
        f"{row['Model']}/{row['Quantization']}",
        setup,
        imported_workload(concurrency=prompts, input_tokens=tokens_in, output_tokens=tokens_out),
        TrialMetrics(
            output_throughput=speed,
            request_throughput=rate,
            overall_throughput=imported_figure(row.get("Tokens/s", "")),
        ),
        memory=Memory(device_peak_bytes=round(gigabytes * _BYTES_PER_GB) if gigabytes else None),
        facts=facts,
        requests=prompts,
        model=row["Model"],
    )


def _setup(row: Row, engine: str, around: _Text) -> EngineSetup:
    gpus, chosen = row.get("GPU Num", ""), row.get("Setting", "").strip("[]- ")
    parts = [engine, f"{gpus} GPU{'s' if gpus != '1' else ''}", chosen]
    args: dict[str, Argument] = {"gpus": int(gpus)} if gpus else {}
    if engine == "vllm":
        said = around.settings.get(chosen or DEFAULT_SETTING, "").split()
        args |= {
            name: value for name, equals, value in (part.partition("=") for part in said) if equals
        }
    return EngineSetup(name=", ".join(filter(None, parts)), engine=engine, args=args)


def _around(text: str, lines: list[str]) -> _Text:
    output, script = _OUTPUT_TOKENS.search(text), _THROUGHPUT_SHAPE.search(text)
    return _Text(
        {match[1]: match[2] for line in lines if (match := _SETTING.match(line))},
        int(output[1]) if output else None,
        (int(script[1]), int(script[2])) if script else (None, None),
    )

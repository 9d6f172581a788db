"""Read grid tables in reStructuredText: speed and memory by model, length, quantization and GPUs.

An empty cell continues the cell above it. The line before a table names its model and engine, such
as `-  7B (vLLM)`. A list at the end explains names such as `[Setting 1]`.
"""

import re
from collections import Counter
from dataclasses import dataclass

from bitbench.features.interop.readers.reading import (
    ImportedRun,
    Reading,
    find_engine_facts,
    find_versions,
    iter_tables,
    make_imported_workload,
    parse_metric,
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
    """The information in the text around the tables, which applies to all of them."""

    settings: dict[str, str]  # `* [Setting 1]=(max_model_len=4096 …)`, by name
    output_tokens: int | None
    throughput: tuple[int | None, int | None]  # tokens in and out of the throughput script


def is_recognized(text: str) -> bool:
    """Return True if the text has this form."""
    return "+====" in text


def read(text: str) -> Reading:
    """Return one run per row of the tables."""
    lines = text.split("\n")
    versions, device = find_versions(lines)
    around = _read_surroundings(text, lines)
    reading = Reading()
    if device:
        reading.host = {"accelerators": [{"name": device}]}
    title = ""
    engine = ""
    for before, cells in iter_tables(text):
        for match in filter(None, map(_TITLE.match, before)):
            title = match[1]
            engine = _ENGINES.get(match[2].lower(), match[2])
        rows, repeated = _split_repeats(_list_rows(cells))
        if repeated:
            lengths = dict.fromkeys(row.get("Input Length", "?") for row in repeated)
            reading.notes.append(
                f"{title}: {len(repeated)} rows (input length {', '.join(lengths)}) are printed "
                "twice; they are kept once."
            )
        facts = find_engine_facts(versions, engine)
        reading.runs += [_make_run(row, engine, around, facts) for row in rows]
    reading.notes.append("One run per point: its spread is unknown.")
    if any(run.metrics.request_throughput for run in reading.runs):
        reading.notes.append(
            "Output throughput of the throughput tables is requests per second × output length."
        )
    return reading


def _list_rows(cells: list[list[str]]) -> list[Row]:
    """Return the cells of each row by title. An empty cell continues the cell above it."""
    titles, *lines = cells
    rows: list[Row] = []
    above: Row = {}
    for line in lines:
        row = {}
        for title, cell in zip(titles, line, strict=False):
            row[title] = cell or above.get(title, "")
        rows.append(row)
        above = row
    return rows


def _split_repeats(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """Return each row once, and the rows that are printed more than once."""
    counts = Counter(tuple(row.items()) for row in rows)
    return list(map(dict, counts)), [dict(row) for row, count in counts.items() if count > 1]


def _make_run(row: Row, engine: str, around: _Text, facts: InstanceFacts) -> ImportedRun:
    """Return the run of a row, which is from a table of speed or of the throughput script."""
    setup = _make_setup(row, engine, around)
    tokens_in = int(row.get("Input Length") or 0) or None
    tokens_out = around.output_tokens
    prompts = int(row.get("# Prompts") or 1)
    rate = parse_metric(row.get("QPS", ""))
    speed = parse_metric(row.get("Speed(tokens/s)", ""))
    if "# Prompts" in row:
        setup = EngineSetup(name=f"{engine}, throughput script", engine=engine)
        tokens_in, tokens_out = around.throughput
        speed = rate * tokens_out if rate and tokens_out else None
    gigabytes = parse_metric(row.get("GPU Memory(GB)", ""))
    peak_bytes = round(gigabytes * _BYTES_PER_GB) if gigabytes else None
    return ImportedRun(
        f"{row['Model']}/{row['Quantization']}",
        setup,
        make_imported_workload(
            concurrency=prompts, input_tokens=tokens_in, output_tokens=tokens_out
        ),
        TrialMetrics(
            output_throughput=speed,
            request_throughput=rate,
            overall_throughput=parse_metric(row.get("Tokens/s", "")),
        ),
        memory=Memory(device_peak_bytes=peak_bytes),
        facts=facts,
        requests=prompts,
        model=row["Model"],
    )


def _make_setup(row: Row, engine: str, around: _Text) -> EngineSetup:
    """Return the engine's setup, with the arguments of the row's setting for vLLM."""
    gpus = row.get("GPU Num", "")
    setting = row.get("Setting", "").strip("[]- ")
    ending = "" if gpus == "1" else "s"
    parts = [engine, f"{gpus} GPU{ending}", setting]
    args: dict[str, Argument] = {"gpus": int(gpus)} if gpus else {}
    if engine == "vllm":
        for argument in around.settings.get(setting or DEFAULT_SETTING, "").split():
            name, equals, value = argument.partition("=")
            if equals:
                args[name] = value
    return EngineSetup(name=", ".join(filter(None, parts)), engine=engine, args=args)


def _read_surroundings(text: str, lines: list[str]) -> _Text:
    settings = {match[1]: match[2] for match in map(_SETTING.match, lines) if match}
    output = _OUTPUT_TOKENS.search(text)
    output_tokens = int(output[1]) if output else None
    script = _THROUGHPUT_SHAPE.search(text)
    if script is None:
        return _Text(settings, output_tokens, (None, None))
    return _Text(settings, output_tokens, (int(script[1]), int(script[2])))

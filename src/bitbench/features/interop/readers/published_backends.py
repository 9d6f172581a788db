"""A Markdown table with one column per backend (TTFT, TPOT), the versions as a list."""

import re

from bitbench.features.interop.readers.reading import (
    ImportedRun,
    Reading,
    imported_facts,
    imported_tables,
    imported_versions,
    imported_workload,
    plausible_imported_number,
)
from bitbench.records.trial import TrialMetrics
from bitbench.study.study import EngineSetup
from bitbench.util.units import UNKNOWN, parse_seconds

_FIELDS = {"TTFT": "ttft_s", "TPOT": "tpot_s", "Latency": "latency_s"}
_UNCERTAINTY = re.compile(r"± [\d.,]+|\[[^]]*\]")
_BACKEND = re.compile(r"^(.*\S)\s*\((.+)\)$")  # `vLLM (Marlin)`


def matches(text: str) -> bool:
    return "**Backend**" in text


def read(text: str) -> Reading:
    lines = text.split("\n")
    rows = {
        cells[0].strip("* "): cells[1:]
        for _, table in imported_tables(text)
        for cells in table
        if "**" in cells[0]
    }
    versions, device = imported_versions(lines)
    reading = Reading(host={"accelerators": [{"name": device}]} if device else {})
    shape = imported_workload(concurrency=None, input_tokens=None, output_tokens=None)
    for column, backend in enumerate(rows["Backend"]):
        match = _BACKEND.match(backend)
        name, kernels = (match[1], (match[2],)) if match else (backend, ())
        figures = {
            metric: _seconds(rows[title][column])
            for title, metric in _FIELDS.items()
            if title in rows
        }
        facts = imported_facts(versions, name, kernels)
        setup = EngineSetup(name=backend, engine=name)
        reading.runs.append(
            ImportedRun(rows["Model"][column], setup, shape, TrialMetrics(**figures), facts=facts)
        )
    reading.notes.append("The file does not give token counts or concurrency.")
    return reading


def _seconds(cell: str) -> float | None:
    """`12.3ms`, or `12.3 ± 0.4 [11.9, 12.8] ms` as bitbench itself writes it; None where it is unknown."""
    if cell == UNKNOWN:
        return None
    return plausible_imported_number(parse_seconds(_UNCERTAINTY.sub("", cell).replace(" ", "")))

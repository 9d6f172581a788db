"""Read a Markdown table with one column per backend (TTFT, TPOT) and a list of versions."""

import re

from bitbench.features.interop.readers.reading import (
    ImportedRun,
    Reading,
    check_number,
    find_engine_facts,
    find_versions,
    iter_tables,
    make_imported_workload,
)
from bitbench.records.trial import TrialMetrics
from bitbench.study.study import EngineSetup
from bitbench.util.units import UNKNOWN, parse_seconds

_FIELDS = {"TTFT": "ttft_s", "TPOT": "tpot_s", "Latency": "latency_s"}
_UNCERTAINTY = re.compile(r"± [\d.,]+|\[[^]]*\]")
_BACKEND = re.compile(r"^(.*\S)\s*\((.+)\)$")  # `vLLM (Marlin)`


def is_recognized(text: str) -> bool:
    """Return True if the text has this form."""
    return "**Backend**" in text


def read(text: str) -> Reading:
    """Return one run per backend."""
    rows = {}
    for _, table in iter_tables(text):
        for cells in table:
            if "**" in cells[0]:
                rows[cells[0].strip("* ")] = cells[1:]
    versions, device = find_versions(text.split("\n"))
    reading = Reading()
    if device:
        reading.host = {"accelerators": [{"name": device}]}
    shape = make_imported_workload(concurrency=None, input_tokens=None, output_tokens=None)
    for column, backend in enumerate(rows["Backend"]):
        engine = backend
        kernels: tuple[str, ...] = ()
        if match := _BACKEND.match(backend):
            engine = match[1]
            kernels = (match[2],)
        metrics = {}
        for title, metric in _FIELDS.items():
            if title in rows:
                metrics[metric] = _parse_cell(rows[title][column])
        run = ImportedRun(
            rows["Model"][column],
            EngineSetup(name=backend, engine=engine),
            shape,
            TrialMetrics(**metrics),
            facts=find_engine_facts(versions, engine, kernels),
        )
        reading.runs.append(run)
    reading.notes.append("The file does not give token counts or concurrency.")
    return reading


def _parse_cell(cell: str) -> float | None:
    """Parse `12.3ms`, or `12.3 ± 0.4 [11.9, 12.8] ms` as bitbench writes it. None if unknown."""
    if cell == UNKNOWN:
        return None
    return check_number(parse_seconds(_UNCERTAINTY.sub("", cell).replace(" ", "")))

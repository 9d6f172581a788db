"""A Markdown table with one column per backend (TTFT, TPOT), the versions as a list, perhaps an operator profile."""

import re

from bitbench.analysis.roofline import operator_group_rules
from bitbench.features.interop.readers.reading import (
    ImportedRun,
    ProfileTable,
    Reading,
    imported_facts,
    imported_tables,
    imported_versions,
    imported_workload,
    plausible_imported_number,
)
from bitbench.records.profile import Operator
from bitbench.records.trial import TrialMetrics
from bitbench.study.study import EngineSetup
from bitbench.util.units import UNKNOWN, parse_bytes, parse_seconds

_FIELDS = {"TTFT": "ttft_s", "TPOT": "tpot_s", "Latency": "latency_s"}
_UNCERTAINTY = re.compile(r"± [\d.,]+|\[[^]]*\]")
_BACKEND = re.compile(r"^(.*\S)\s*\((.+)\)$")  # `vLLM (Marlin)`


def has_vendor_backends(text: str) -> bool:
    return "**Backend**" in text


def read(text: str) -> Reading:
    lines = text.split("\n")
    rows = {
        cells[0].strip("* "): cells[1:] for _, table in imported_tables(text) for cells in table if "**" in cells[0]
    }
    versions, device = imported_versions(lines)
    reading = Reading(host={"accelerators": [{"name": device}]} if device else {})
    shape = imported_workload(concurrency=None, input_tokens=None, output_tokens=None)
    for column, backend in enumerate(rows["Backend"]):
        match = _BACKEND.match(backend)
        name, kernels = (match[1], (match[2],)) if match else (backend, ())
        figures = {metric: _seconds(rows[title][column]) for title, metric in _FIELDS.items() if title in rows}
        facts = imported_facts(versions, name, kernels)
        setup = EngineSetup(name=backend, engine=name)
        reading.runs.append(ImportedRun(rows["Model"][column], setup, shape, TrialMetrics(**figures), facts=facts))
    reading.notes.append("The file does not give token counts or concurrency.")
    reading.profile = _profile(lines)
    if reading.profile is not None:
        reading.notes.append(
            f"Its operator profile ({len(reading.profile.operators)} rows) is kept beside the study: "
            "`bitbench report --format profile-md` shows it."
        )
    return reading


def _seconds(cell: str) -> float | None:
    """`12.3ms`, or `12.3 ± 0.4 [11.9, 12.8] ms` as bitbench itself writes it; None where it is unknown."""
    if cell == UNKNOWN:
        return None
    return plausible_imported_number(parse_seconds(_UNCERTAINTY.sub("", cell).replace(" ", "")))


_TOTAL = re.compile(r"Self (CPU|CUDA) time total: (\S+)")
_DEVICE = re.compile(r"^- Device: (.+)$")
_GAP = re.compile(r"\s{2,}")


def _profile(lines: list[str]) -> ProfileTable | None:
    """None where there is no such table."""
    place = next((place for place, line in enumerate(lines) if "Self CPU %" in line), None)
    if place is None:
        return None
    titles = _GAP.split(lines[place].strip())
    rows = [dict(zip(titles, _GAP.split(line.strip()), strict=False)) for line in lines[place + 1 :]]
    operators = [_operator(row) for row in rows if len(row) == len(titles) and row[titles[-1]].isdigit()]
    totals = {match[1]: parse_seconds(match[2]) for line in lines if (match := _TOTAL.search(line))}
    devices = [match[1].strip() for line in lines[:place] if (match := _DEVICE.match(line))]
    return ProfileTable(devices[-1] if devices else None, tuple(operators), totals.get("CPU"), totals.get("CUDA"))


def _operator(row: dict[str, str]) -> Operator:
    return Operator(
        group=operator_group_rules().group_of(row["Name"])[0],
        name=row["Name"],
        calls=int(row["# of Calls"]),
        self_cpu_s=parse_seconds(row["Self CPU"]),
        self_cpu_share=float(row["Self CPU %"].rstrip("%")) / 100,
        cpu_total_s=parse_seconds(row["CPU total"]),
        self_device_s=parse_seconds(row["Self CUDA"]) if "Self CUDA" in row else None,
        self_memory_bytes=_bytes(row["Self CPU Mem"]) if "Self CPU Mem" in row else None,
    )


def _bytes(text: str) -> int:
    """torch writes `13.36 Mb` for MiB, and a minus for what was freed."""
    sign = -1 if text.startswith("-") else 1
    return sign * parse_bytes(re.sub(r"([KMG])b$", r"\1iB", text.lstrip("-")))

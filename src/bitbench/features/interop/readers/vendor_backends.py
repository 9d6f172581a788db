"""A Markdown table with one column per backend (TTFT, TPOT), the versions as a list, perhaps an operator profile."""

import re

from bitbench.features.interop.readers.reading import (
    ImportedRun,
    Reading,
    imported_profile_table,
    imported_row_cells,
    imported_workload,
    plausible_imported_number,
)
from bitbench.records.trial import InstanceFacts, TrialMetrics
from bitbench.study.study import EngineSetup
from bitbench.util.units import UNKNOWN, parse_seconds

_FIELDS = {"TTFT": "ttft_s", "TPOT": "tpot_s", "Latency": "latency_s"}
_UNCERTAINTY = re.compile(r"± [\d.,]+|\[[^]]*\]")


def has_vendor_backends(text: str) -> bool:
    return "**Backend**" in text


def read(text: str) -> Reading:
    lines = text.split("\n")
    rows = {
        cells[0].strip("* "): cells[1:] for line in lines if (cells := imported_row_cells(line)) and "**" in cells[0]
    }
    versions, device = _versions(lines)
    reading = Reading(host={"accelerators": [{"name": device}]} if device else {})
    shape = imported_workload(concurrency=None, input_tokens=None, output_tokens=None)
    for column, backend in enumerate(rows["Backend"]):
        name, kernel = _name_and_kernel(backend)
        packages = versions.get(name.lower(), {})
        figures = {metric: _seconds(rows[title][column]) for title, metric in _FIELDS.items() if title in rows}
        reading.runs.append(
            ImportedRun(
                rows["Model"][column],
                EngineSetup(name=backend, engine=name),
                shape,
                TrialMetrics(**figures),
                facts=InstanceFacts(
                    engine_version=packages.get(name.lower()),
                    versions=packages,
                    kernels=(kernel,) if kernel else (),
                ),
            )
        )
    reading.notes.append("The file does not give token counts or concurrency.")
    reading.profile = imported_profile_table(lines)
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
    value = _UNCERTAINTY.sub("", cell).replace(" ", "")
    return plausible_imported_number(parse_seconds(value))


def _name_and_kernel(backend: str) -> tuple[str, str | None]:
    """`vLLM (Marlin)`."""
    name, _, kernel = backend.removesuffix(")").partition("(")
    return (name.rstrip(), kernel) if kernel and backend.endswith(")") else (backend, None)


def _versions(lines: list[str]) -> tuple[dict[str, dict[str, str]], str | None]:
    """`- vLLM` with `  - torch 2.9.0` below it; `- Device: …` before the first heading that follows counts."""
    found: dict[str, dict[str, str]] = {}
    device: str | None = None
    owner = ""
    for line in lines:
        if line.startswith("- Device:") and device is None:
            device = line.removeprefix("- Device:").strip()
        elif line.startswith("- "):
            owner = line[2:].strip().lower()
        elif match := re.match(r"^\s+- (\S+) (\S+)\s*$", line):
            found.setdefault(owner, {})[match.group(1)] = match.group(2)
    return found, device

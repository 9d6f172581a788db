"""A Markdown table of kernel times: a row per shape, a column `NAME (ms)` per kernel, perhaps codebook sizes."""

import re

from bitbench.features.interop.readers.reading import Reading, imported_figure, imported_row_cells
from bitbench.records.profile import PublishedKernel

_NEEDED = {"in_features", "out_features"}
_MILLISECONDS = re.compile(r"^(.+) \(ms\)$")
_SHAPE = ("batch_size", "in_features", "out_features")


def has_vendor_kernels(text: str) -> bool:
    return _header(text.split("\n")) is not None


def _header(lines: list[str]) -> int | None:
    return next((place for place, line in enumerate(lines) if set(imported_row_cells(line)) >= _NEEDED), None)


def read(text: str) -> Reading:
    lines = text.split("\n")
    place = _header(lines)
    assert place is not None  # is_meant was asked before
    header = imported_row_cells(lines[place])
    rows = [dict(zip(header, imported_row_cells(line), strict=False)) for line in lines[place + 1 :] if "|" in line]
    kernels = [_kernel(row) for row in rows if not set(row["in_features"]) <= set("-: ")]
    return Reading(
        kernels=kernels,
        notes=[
            "One time per point: its spread is unknown, and so is whether caches were warm.",
            "The file does not name the machine, nor the bytes that each kernel reads.",
        ],
    )


def _kernel(row: dict[str, str]) -> PublishedKernel:
    times = {
        match.group(1): imported_figure(value) for name, value in row.items() if (match := _MILLISECONDS.match(name))
    }
    known = {*_SHAPE, "ratio", *(f"{name} (ms)" for name in times)}
    return PublishedKernel(
        batch=int(row.get("batch_size") or 1),
        in_features=int(row["in_features"]),
        out_features=int(row["out_features"]),
        labels={name: int(value) for name, value in row.items() if name not in known and value.isdigit()},
        seconds={name: value / 1000 for name, value in times.items() if value is not None},
        ratio=imported_figure(row.get("ratio", "")),
    )

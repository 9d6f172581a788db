"""A Markdown table of kernel times: a row per shape, a column `NAME (ms)` per kernel, perhaps codebook sizes."""

from bitbench.features.interop.readers.reading import Reading, imported_figure, imported_tables
from bitbench.records.profile import PublishedKernel

_NEEDED = {"in_features", "out_features"}
_UNIT = " (ms)"
_NO_LABELS = {*_NEEDED, "batch_size", "ratio"}


def has_vendor_kernels(text: str) -> bool:
    return any(set(rows[0]) >= _NEEDED for _, rows in imported_tables(text))


def read(text: str) -> Reading:
    titles, *rows = next(rows for _, rows in imported_tables(text) if set(rows[0]) >= _NEEDED)
    return Reading(
        kernels=[_kernel(dict(zip(titles, row, strict=False))) for row in rows],
        notes=[
            "One time per point: its spread is unknown, and so is whether caches were warm.",
            "The file does not name the machine, nor the bytes that each kernel reads.",
        ],
    )


def _kernel(row: dict[str, str]) -> PublishedKernel:
    times = {name: imported_figure(value) for name, value in row.items() if name.endswith(_UNIT)}
    others = {name: value for name, value in row.items() if name not in {*_NO_LABELS, *times}}
    return PublishedKernel(
        batch=int(row.get("batch_size") or 1),
        in_features=int(row["in_features"]),
        out_features=int(row["out_features"]),
        labels={name: int(value) for name, value in others.items() if value.isdigit()},
        seconds={name.removesuffix(_UNIT): time / 1000 for name, time in times.items() if time is not None},
        ratio=imported_figure(row.get("ratio", "")),
    )

"""Benchmark records as people publish them, in Markdown or reStructuredText; the content says which form it is."""

from collections.abc import Callable

from bitbench.errors import ImportFileError
from bitbench.imports import seed_backends, seed_grids, seed_runs
from bitbench.imports.reading import Reading
from bitbench.imports.text import table_row

FORMS: tuple[tuple[Callable[[str], bool], Callable[[str], Reading]], ...] = (
    (seed_runs.is_meant, seed_runs.read),
    (seed_backends.is_meant, seed_backends.read),
    (seed_grids.is_meant, seed_grids.read),
)
_KERNEL_COLUMNS = {"in_features", "out_features", "ratio"}


def read(text: str) -> Reading:
    for is_meant, reader in FORMS:
        if is_meant(text):
            return reader(text)
    if any(set(table_row(line)) >= _KERNEL_COLUMNS for line in text.split("\n")):
        raise ImportFileError(
            "this is a kernel table, which has no place in a study folder yet; there is nothing else in it to import"
        )
    raise ImportFileError(
        "this is none of the published forms that are known (runs by configuration, a table of backends, grid tables); "
        "give the tool that wrote it with --from"
    )

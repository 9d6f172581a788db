"""Benchmark records as people publish them, in Markdown or reStructuredText; the content says which form it is."""

from collections.abc import Callable

from bitbench.ground.errors import ImportFileError
from bitbench.imports import vendor_backends, vendor_grids, vendor_kernels, vendor_runs
from bitbench.imports.reading import Reading

FORMS: tuple[tuple[Callable[[str], bool], Callable[[str], Reading]], ...] = (
    (vendor_runs.is_meant, vendor_runs.read),
    (vendor_backends.is_meant, vendor_backends.read),
    (vendor_grids.is_meant, vendor_grids.read),
    (vendor_kernels.is_meant, vendor_kernels.read),
)


def read(text: str) -> Reading:
    for is_meant, reader in FORMS:
        if is_meant(text):
            return reader(text)
    raise ImportFileError(
        "unknown table format; known are (runs by configuration, a table of backends, grid tables, "
        "a kernel table); "
        "give the tool that wrote it with --from"
    )

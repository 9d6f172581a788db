"""Benchmark records as people publish them, in Markdown or reStructuredText; the content says which form it is."""

from collections.abc import Callable

from bitbench.ground.errors import ImportFileError
from bitbench.imports import seed_backends, seed_grids, seed_kernels, seed_runs
from bitbench.imports.reading import Reading

FORMS: tuple[tuple[Callable[[str], bool], Callable[[str], Reading]], ...] = (
    (seed_runs.is_meant, seed_runs.read),
    (seed_backends.is_meant, seed_backends.read),
    (seed_grids.is_meant, seed_grids.read),
    (seed_kernels.is_meant, seed_kernels.read),
)


def read(text: str) -> Reading:
    for is_meant, reader in FORMS:
        if is_meant(text):
            return reader(text)
    raise ImportFileError(
        "this is none of the published forms that are known (runs by configuration, a table of backends, grid tables, "
        "a kernel table); "
        "give the tool that wrote it with --from"
    )

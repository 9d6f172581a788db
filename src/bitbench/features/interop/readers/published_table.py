"""Benchmark records as people publish them, in Markdown or reStructuredText; the content says which form it is."""

from bitbench.features.interop.readers import published_backends, published_grids, published_runs
from bitbench.features.interop.readers.reading import ImportFileError, Reading

FORMS = (
    (published_runs.matches, published_runs.read),
    (published_backends.matches, published_backends.read),
    (published_grids.matches, published_grids.read),
)
LONGEST_LINE = 10_000  # characters; a table that people read has a few hundred


def read(text: str) -> Reading:
    if max(map(len, text.split("\n"))) > LONGEST_LINE:
        raise ImportFileError(
            f"it has a line of more than {LONGEST_LINE} characters, so it is no table"
        )
    for is_meant, reader in FORMS:
        if is_meant(text):
            return reader(text)
    raise ImportFileError(
        "unknown table format; known are (runs by configuration, a table of backends, grid tables); "
        "give the tool that wrote it with --from"
    )

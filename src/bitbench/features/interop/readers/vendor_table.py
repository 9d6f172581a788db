"""Benchmark records as people publish them, in Markdown or reStructuredText; the content says which form it is."""

from bitbench.features.interop.readers import vendor_backends, vendor_grids, vendor_runs
from bitbench.features.interop.readers.reading import ImportFileError, Reading

FORMS = (
    (vendor_runs.has_vendor_runs, vendor_runs.read),
    (vendor_backends.has_vendor_backends, vendor_backends.read),
    (vendor_grids.has_vendor_grids, vendor_grids.read),
)
LONGEST_LINE = 10_000  # characters; a table that people read has a few hundred


def read(text: str) -> Reading:
    if max(map(len, text.split("\n"))) > LONGEST_LINE:
        raise ImportFileError(f"it has a line of more than {LONGEST_LINE} characters, so it is no table")
    for is_meant, reader in FORMS:
        if is_meant(text):
            return reader(text)
    raise ImportFileError(
        "unknown table format; known are (runs by configuration, a table of backends, grid tables); "
        "give the tool that wrote it with --from"
    )

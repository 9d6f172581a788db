"""Read published benchmark records in Markdown or reStructuredText. The content tells the form."""

from bitbench.features.interop.readers import published_backends, published_grids, published_runs
from bitbench.features.interop.readers.reading import ImportFileError, Reading

FORMS = (
    (published_runs.is_recognized, published_runs.read),
    (published_backends.is_recognized, published_backends.read),
    (published_grids.is_recognized, published_grids.read),
)
LONGEST_LINE = 10_000  # characters: a table that people read has a few hundred


def read(text: str) -> Reading:
    """Return the runs of the tables. Raise ImportFileError if their form is unknown."""
    if max(map(len, text.split("\n"))) > LONGEST_LINE:
        raise ImportFileError(
            f"it has a line of more than {LONGEST_LINE} characters, so it is no table"
        )
    for is_recognized, read_form in FORMS:
        if is_recognized(text):
            return read_form(text)
    raise ImportFileError(
        "unknown table format; known are (runs by configuration, a table of backends, grid "
        "tables); give the tool that wrote it with --from"
    )

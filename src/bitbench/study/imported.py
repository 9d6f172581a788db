"""Where the records of a study come from when bitbench did not run it."""

from bitbench.study.base import Record


class ImportedFile(Record):
    name: str  # without its folder
    sha256: str


class ImportSource(Record):
    """Another tool's result files, and everything that was assumed, changed or left out on the way."""

    tool: str
    files: tuple[ImportedFile, ...]
    notes: tuple[str, ...] = ()

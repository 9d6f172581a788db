"""Where the files below a folder are damaged: asked only once a query has met something that it could not read."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from bitbench.records.quality import QUALITY_FORMAT, QualityRecord
from bitbench.records.strict_reader import parse
from bitbench.records.trial import RECORD_FORMAT, InstanceRecord, TrialRecord
from bitbench.study.base import Record
from bitbench.util.errors import StoreError

_KINDS: dict[str, tuple[type[Record], int]] = {
    "trials": (TrialRecord, RECORD_FORMAT),
    "instances": (InstanceRecord, RECORD_FORMAT),
    "quality": (QualityRecord, QUALITY_FORMAT),
}


def damaged_lines(file: str, table: str, filesystem: Any | None) -> list[str]:
    """`FILE:NUMBER` of each complete line of a file of this table that is no record. `filesystem`: fsspec's, if any."""
    with Path(file).open("rb") if filesystem is None else filesystem.open(file, "rb") as lines:
        return [f"{file}:{number}" for number in _damaged(lines, table)]


def _damaged(lines: Iterable[bytes], table: str) -> Iterator[int]:
    kind, newest = _KINDS[table]
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):  # still being written, or torn by a kill
            continue
        try:
            parse(line, kind, newest, "", "")
        except StoreError:
            yield number


def damaged_rows(rows: ds.FileSystemDataset) -> str | None:
    """A sentence about the first file of request rows that cannot be read; None where all can."""
    for fragment in rows.get_fragments():
        try:
            fragment.to_table(schema=rows.schema)
        except (pa.ArrowException, OSError) as error:
            cause = str(error).strip().partition("\n")[0].rstrip(".")
            return f"{fragment.path} is damaged and cannot be read: {cause}; remove it to continue without its rows"
    return None

"""The request rows of many trials as one table that is read where it lies."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from bitbench.core.recorded.requests import REQUEST_COLUMNS
from bitbench.store.records import arrow_schema


def request_dataset(places: Iterable[tuple[str, str, str]], filesystem: Any | None) -> ds.FileSystemDataset:
    """`places`: each file with the study folder and the trial that its rows are of. `filesystem`: fsspec's, if any.

    A file of an older version lacks columns; they are null.
    """
    schema = (
        arrow_schema(REQUEST_COLUMNS).append(pa.field("folder", pa.string())).append(pa.field("trial", pa.string()))
    )
    files = fs.LocalFileSystem() if filesystem is None else fs.PyFileSystem(fs.FSSpecHandler(filesystem))
    parquet = ds.ParquetFileFormat()
    fragments = [
        parquet.make_fragment(
            path if filesystem is None else filesystem._strip_protocol(path),
            filesystem=files,
            partition_expression=(ds.field("folder") == folder) & (ds.field("trial") == trial),
        )
        for path, folder, trial in places
    ]
    return ds.FileSystemDataset(fragments, schema, parquet, files)

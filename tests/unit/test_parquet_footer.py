"""Sizes from the footer of a Parquet file: pyarrow's own where it is honest, a ValueError where it is not."""

import io
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bitbench.records.strict_reader import parquet_group_sizes, strict_reader_schema
from bitbench.records.tables import REQUEST_COLUMNS
from tests.length import by_length

MUTATIONS = by_length(3_000, 100_000)
SEED = 26


def parquet(table: pa.Table, rows: int = 7) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd", row_group_size=rows, write_page_checksum=True)
    return file.getvalue()


def requests() -> pa.Table:
    schema = strict_reader_schema(REQUEST_COLUMNS)
    return pa.table({field.name: pa.nulls(20, field.type) for field in schema}, schema=schema)


def test_sizes_are_those_that_pyarrow_reads() -> None:
    table = pa.table({"a": range(20), "status": ["ok"] * 20, "gaps": [[0.5, 0.25]] * 20})
    content = parquet(table)
    groups = [pq.ParquetFile(io.BytesIO(content)).metadata.row_group(place) for place in range(3)]
    chunks = [[group.column(place) for place in range(group.num_columns)] for group in groups]
    assert [size.values for size in parquet_group_sizes(content)] == [
        sum(one.num_values for one in own) for own in chunks
    ]
    assert [size.unpacked_bytes for size in parquet_group_sizes(content)] == [
        sum(one.total_uncompressed_size for one in own) for own in chunks
    ]


def test_a_damaged_footer_is_a_value_error_and_never_the_end_of_the_process() -> None:
    """Of these, one in about two hundred ends a process that asks pyarrow for the sizes of a column."""
    whole, source = parquet(requests()), random.Random(SEED)
    footer = int.from_bytes(whole[-8:-4], "little")
    read, causes = 0, set()
    for _ in range(MUTATIONS):
        content = bytearray(whole)
        for _ in range(source.choice((1, 1, 2, 3))):
            content[-8 - source.randrange(1, footer + 1)] = source.randrange(256)
        try:
            parquet_group_sizes(bytes(content))
            read += 1
        except ValueError as error:
            causes.add(str(error))
    assert 0 < read < MUTATIONS
    assert "" not in causes


@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"\xff\xff\xff\x7fPAR1", b"\x1c" * 40 + (40).to_bytes(4, "little") + b"PAR1"]
)
def test_what_is_no_parquet_file_is_said_so(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"it is no Parquet file|its footer is"):
        parquet_group_sizes(content)

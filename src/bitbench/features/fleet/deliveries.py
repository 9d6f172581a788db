"""Results of a block as a node sends them to the driver, which opens them in `fleet.incoming`."""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from bitbench.features.fleet.messages import Message, message
from bitbench.measure.group import Draft
from bitbench.measure.quality import QualityDraft
from bitbench.measure.trial import TrialDraft
from bitbench.records.quality import QualityMaterial

MATERIALS = TypeAdapter(dict[str, QualityMaterial])  # by the name of a model


def pack(draft: Draft, order: str, seq: int, logs: Mapping[str, bytes]) -> Message:
    """`logs`: what those of the instances gained since the last one."""
    if isinstance(draft, TrialDraft):
        kind, record, rows = "trial", draft.record.model_dump_json(), draft.requests
    elif isinstance(draft, QualityDraft):
        kind, record, rows = "quality", draft.record.model_dump_json(), draft.scores
    else:
        kind, record, rows = "instance", draft.model_dump_json(), None
    parts = (*([_packed(rows)] if rows is not None else []), *logs.values())
    return message(
        "draft", *parts, draft=kind, order=order, seq=seq, record=record, has_rows=rows is not None, logs=tuple(logs)
    )


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd", write_page_checksum=True)
    return bytes(sink.getvalue().to_pybytes())

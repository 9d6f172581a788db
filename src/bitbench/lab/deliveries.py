"""Results of a block on their way from a node to the driver."""

from collections.abc import Mapping

import pyarrow as pa
from pydantic import TypeAdapter

from bitbench.core.recorded.quality import QualityMaterial, QualityRecord
from bitbench.core.recorded.trial import InstanceRecord, TrialRecord
from bitbench.fleet.messages import Message, message
from bitbench.lab.group import Draft
from bitbench.lab.quality import QualityDraft
from bitbench.lab.trial import TrialDraft

MATERIALS = TypeAdapter(dict[str, QualityMaterial])  # by the name of a model
_ZSTD = pa.ipc.IpcWriteOptions(compression="zstd")


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


def unpack(delivered: Message) -> tuple[Draft, dict[str, bytes]]:
    """A draft, and what logs gained, by the names that the node gave its instances."""
    header, parts = delivered.header, list(delivered.parts)
    rows = _unpacked(parts.pop(0)) if header.has_rows else None
    logs = dict(zip(header.logs, parts, strict=True))
    if header.draft == "trial":
        return TrialDraft(TrialRecord.model_validate_json(header.record), rows), logs
    if header.draft == "quality":
        return QualityDraft(QualityRecord.model_validate_json(header.record), rows), logs
    return InstanceRecord.model_validate_json(header.record), logs


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_ZSTD) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue().to_pybytes())


def _unpacked(content: bytes) -> pa.Table:
    with pa.ipc.open_stream(content) as reader:
        return reader.read_all()

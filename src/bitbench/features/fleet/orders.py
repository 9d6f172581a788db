"""What a machine of a fleet is asked to do, a block of a study or a part of a trial's requests, and what it
delivers.

Everything else is made on that machine, where certain things have to be the same.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, TypeAdapter

from bitbench import __version__
from bitbench.features.fleet.channel import Message, channel_message
from bitbench.loadgen.progress import RELATIVE_ERROR, LatencySketch, SketchCounts, Snapshot
from bitbench.measure.group import Draft
from bitbench.measure.progress import Pace
from bitbench.measure.quality import QualityDraft
from bitbench.measure.trial import TrialDraft
from bitbench.ports import LoadResult
from bitbench.records.lock import Lock
from bitbench.records.quality import QualityMaterial
from bitbench.records.request_rows import RequestRows
from bitbench.records.trial import NOT_THE_ENGINES, ClientHealth, Memory, Outcome, SketchedTimes, TrialRecord
from bitbench.study.base import Record
from bitbench.study.metrics import PROMISED
from bitbench.study.plan import Config, Plan, Point

_HARMLESS = frozenset({Outcome.OK, *NOT_THE_ENGINES})

ORDER_FORMAT: Literal[1] = 1
# History of ORDER_FORMAT:
#   1  first form; `excused` came later


class BlockOrder(Record):
    """A block, or what is left of one: all of its configs, so that what is special about a machine cancels out.

    The machine works only where its own versions, variants and files are those that the driver found. No weights, rows
    or keys are in it: it has some kilobytes.
    """

    format: int = ORDER_FORMAT
    id: str  # of this attempt; the same block has another one when it is repeated
    bitbench: str  # the version that wrote it, and has to run it
    plan: Plan
    folder: str  # what file names in the study are relative to, on the driver and on the machine
    block: int
    rounds: int  # 0: only quality is left to measure
    open_points: tuple[int, ...] = ()  # places in the plan's points that have an undecided question
    quality: tuple[Config, ...] = ()  # whose quality this machine measures
    # What was recorded before and matters here: this block, failures elsewhere, the most memory of each config.
    # Without figures.
    history: tuple[TrialRecord, ...] = ()
    excused: tuple[str, ...] = ()  # ids of those that an earlier call of the driver rejected
    environments: dict[str, str] = Field(default_factory=dict)  # hashes of their package versions
    variants: dict[str, str] = Field(default_factory=dict)  # content hashes
    files: dict[str, str] = Field(default_factory=dict)  # hashes of the texts and traces that the study reads

    @property
    def points(self) -> frozenset[Point]:
        return frozenset(self.plan.points[place] for place in self.open_points)

    @property
    def name(self) -> str:
        return f"block {self.block + 1}" if self.rounds else "quality"


LOAD_ORDER_FORMAT: Literal[1] = 1
# History of LOAD_ORDER_FORMAT:
#   1  first form


class LoadOrder(Record):
    """One machine's part of the requests of a trial. The task itself, with the key of the endpoint, is a part of the
    message and in no record."""

    format: int = LOAD_ORDER_FORMAT
    id: str
    bitbench: str  # the version that wrote it, and has to run it
    numpy: str  # likewise: it draws the plan, and every machine has to draw the same
    files: dict[str, str] = Field(default_factory=dict)  # hashes of the texts and traces that the workload reads


def make_order(
    order_id: str,
    lock: Lock,
    folder: str,
    pace: Pace,
    trials: Sequence[TrialRecord],
    *,
    excused: Collection[str] = (),
    block: int,
    rounds: int,
    quality: tuple[Config, ...],
) -> BlockOrder:
    """`folder`: what file names in the study are relative to. `trials`: all that were recorded so far.
    `excused`: ids of those that do not count against another one."""
    plan = lock.plan
    history = tuple(_history(trials, block))
    is_open = [place for place, point in enumerate(plan.points) if rounds and pace.is_open(point, block)]
    return BlockOrder(
        id=order_id,
        bitbench=__version__,
        plan=plan,
        folder=folder,
        block=block,
        rounds=rounds,
        open_points=tuple(is_open),
        quality=quality,
        history=history,
        excused=tuple(trial.id for trial in history if trial.id in excused),
        environments=_fleet_order_hashes(lock.environments),
        variants={name: found for name, found in lock.variants.items() if found is not None},
        files=lock.files,
    )


def fleet_order_differences(order: BlockOrder, found: Lock, plan: Plan) -> list[str]:
    """What a machine finds otherwise than the driver, each in a few words. `plan`: as it expands the study itself."""
    missing = {variant.name for variant in order.plan.variants} - {variant.name for variant in plan.variants}
    is_same = found.bitbench == order.bitbench
    return [
        *([] if is_same else [f"bitbench {found.bitbench} instead of {order.bitbench}"]),
        *(f"variant {name} is missing" for name in sorted(missing)),
        *_differing("environment", order.environments, _fleet_order_hashes(found.environments)),
        *_differing("variant", order.variants, found.variants),
        *_differing("file", order.files, found.files),
    ]


def _fleet_order_hashes(versions: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Of the package versions of environments, by name."""
    return {
        name: hashlib.sha256(json.dumps(packages, sort_keys=True).encode()).hexdigest()
        for name, packages in versions.items()
    }


def _differing(kind: str, wanted: Mapping[str, str], found: Mapping[str, str | None]) -> Iterable[str]:
    for name, hash_ in wanted.items():
        if found.get(name) != hash_:
            yield f"{kind} {name} {'is missing' if found.get(name) is None else 'differs'}"


def _history(trials: Sequence[TrialRecord], block: int) -> Iterable[TrialRecord]:
    """Of this block everything; of others what ended badly, and the trial that needed most memory."""
    largest: dict[Config, TrialRecord] = {}
    for trial in trials:
        kept = largest.get(trial.point.config)
        if trial.memory.peak_bytes and (kept is None or trial.memory.peak_bytes > (kept.memory.peak_bytes or 0)):
            largest[trial.point.config] = trial
    chosen = {id(trial) for trial in largest.values()}
    for trial in trials:
        failed = trial.kind == "measured" and trial.outcome not in _HARMLESS
        if trial.block == block or failed or id(trial) in chosen:
            bare = _bare(trial)
            yield bare.model_copy(update={"metrics": trial.metrics}) if trial.block == block else bare


def _bare(trial: TrialRecord) -> TrialRecord:
    return TrialRecord(
        id=trial.id,
        kind=trial.kind,
        point=trial.point,
        block=trial.block,
        index=trial.index,
        round=trial.round,
        turn=trial.turn,
        instance_id=trial.instance_id,
        started_at=trial.started_at,
        duration_s=trial.duration_s,
        outcome=trial.outcome,
        memory=Memory(peak_bytes=trial.memory.peak_bytes),
    )


SKETCHED = (*PROMISED, "itl")  # by their names in the registry of metrics


class PartProgress(Record):
    """How a part goes, by the load workers of its machine."""

    workers: tuple[Snapshot, ...]


class PartReport(Record):
    """Sketches are of complete requests, as the figures of a trial are. Time zero is that of all parts."""

    requests: int
    health: ClientHealth
    duration_s: float
    sketches: dict[str, SketchCounts]

    @classmethod
    def of(cls, part: LoadResult) -> "PartReport":
        rows = RequestRows(part.requests).complete()
        return cls(
            requests=part.requests.num_rows,
            health=part.health,
            duration_s=part.duration_s,
            sketches={name: _sketch(rows, name) for name in SKETCHED},
        )


def merged_fleet_order_times(parts: Sequence[PartReport]) -> dict[str, SketchedTimes]:
    """As good as one sketch of all values; without a time that no request has."""
    merged = {name: LatencySketch.of(*(part.sketches[name] for part in parts)) for name in SKETCHED}
    found = {}
    for name, sketch in merged.items():
        p50_s, p90_s, p99_s = (sketch.quantile(share) for share in (0.50, 0.90, 0.99))
        if p50_s is not None and p90_s is not None and p99_s is not None:
            found[name] = SketchedTimes(
                count=sketch.count, p50_s=p50_s, p90_s=p90_s, p99_s=p99_s, relative_error=RELATIVE_ERROR
            )
    return found


def _sketch(rows: RequestRows, name: str) -> SketchCounts:
    times, sketch = rows.time(name), LatencySketch()
    sketch.add_all(times[~np.isnan(times)])
    return sketch.counts()


MATERIALS = TypeAdapter(dict[str, QualityMaterial])  # by the name of a model


def pack_fleet_order_result(draft: Draft, order: str, seq: int, logs: Mapping[str, bytes]) -> Message:
    """`logs`: what those of the instances gained since the last one."""
    if isinstance(draft, TrialDraft):
        kind, record, rows = "trial", draft.record.model_dump_json(), draft.requests
    elif isinstance(draft, QualityDraft):
        kind, record, rows = "quality", draft.record.model_dump_json(), draft.scores
    else:
        kind, record, rows = "instance", draft.model_dump_json(), None
    parts = (*([_packed(rows)] if rows is not None else []), *logs.values())
    return channel_message(
        "draft", *parts, draft=kind, order=order, seq=seq, record=record, has_rows=rows is not None, logs=tuple(logs)
    )


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd", write_page_checksum=True)
    return bytes(sink.getvalue().to_pybytes())

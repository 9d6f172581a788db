"""What a machine of a fleet is asked to do: one block of a study, or a part of a trial's requests. Everything else is
made on that machine, where certain things have to be the same."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from pydantic import Field

from bitbench import __version__
from bitbench.measure.progress import Pace
from bitbench.records.lock import Lock
from bitbench.records.trial import NOT_THE_ENGINES, Memory, Outcome, TrialRecord
from bitbench.study.base import Record
from bitbench.study.plan import Config, Plan, Point, Purpose

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
    purpose: Purpose = Purpose.SELECTION
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
        purpose=pace.purpose(block),
        open_points=tuple(is_open),
        quality=quality,
        history=history,
        excused=tuple(trial.id for trial in history if trial.id in excused),
        environments=hashes_of(lock.environments),
        variants={name: found for name, found in lock.variants.items() if found is not None},
        files=lock.files,
    )


def differences(order: BlockOrder, found: Lock, plan: Plan) -> list[str]:
    """What a machine finds otherwise than the driver, each in a few words. `plan`: as it expands the study itself."""
    missing = {variant.name for variant in order.plan.variants} - {variant.name for variant in plan.variants}
    return [
        *(f"bitbench {found.bitbench} instead of {order.bitbench}" for _ in [0] if found.bitbench != order.bitbench),
        *(f"variant {name} is missing" for name in sorted(missing)),
        *_differing("environment", order.environments, hashes_of(found.environments)),
        *_differing("variant", order.variants, found.variants),
        *_differing("file", order.files, found.files),
    ]


def hashes_of(versions: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
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
            yield _bare(trial)


def _bare(trial: TrialRecord) -> TrialRecord:
    return TrialRecord(
        id=trial.id,
        kind=trial.kind,
        point=trial.point,
        block=trial.block,
        index=trial.index,
        purpose=trial.purpose,
        round=trial.round,
        instance_id=trial.instance_id,
        started_at=trial.started_at,
        duration_s=trial.duration_s,
        outcome=trial.outcome,
        memory=Memory(peak_bytes=trial.memory.peak_bytes),
    )

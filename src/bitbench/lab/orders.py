"""A block of a study as an order for another machine, and what has to be the same there."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence

from bitbench import __version__
from bitbench.core.cell import Contender, Plan
from bitbench.core.order import Order
from bitbench.core.recorded.lock import Lock
from bitbench.core.recorded.trial import NOT_THE_ENGINES, Memory, Outcome, TrialRecord
from bitbench.planning.schedule import Pace

_HARMLESS = frozenset({Outcome.OK, *NOT_THE_ENGINES})


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
    quality: tuple[Contender, ...],
) -> Order:
    """`folder`: what file names in the study are relative to. `trials`: all that were recorded so far.
    `excused`: ids of those that do not count against another one."""
    plan = lock.plan
    history = tuple(_history(trials, block))
    is_open = [place for place, cell in enumerate(plan.cells) if rounds and pace.is_open(cell, block)]
    return Order(
        id=order_id,
        bitbench=__version__,
        plan=plan,
        folder=folder,
        block=block,
        rounds=rounds,
        purpose=pace.purpose(block),
        open_cells=tuple(is_open),
        quality=quality,
        history=history,
        excused=tuple(trial.id for trial in history if trial.id in excused),
        environments=hashes_of(lock.environments),
        variants={name: found for name, found in lock.variants.items() if found is not None},
        files=lock.files,
    )


def differences(order: Order, found: Lock, plan: Plan) -> list[str]:
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
    largest: dict[Contender, TrialRecord] = {}
    for trial in trials:
        kept = largest.get(trial.cell.contender)
        if trial.memory.peak_bytes and (kept is None or trial.memory.peak_bytes > (kept.memory.peak_bytes or 0)):
            largest[trial.cell.contender] = trial
    chosen = {id(trial) for trial in largest.values()}
    for trial in trials:
        failed = trial.kind == "measured" and trial.outcome not in _HARMLESS
        if trial.block == block or failed or id(trial) in chosen:
            yield _bare(trial)


def _bare(trial: TrialRecord) -> TrialRecord:
    return TrialRecord(
        id=trial.id,
        kind=trial.kind,
        cell=trial.cell,
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

"""Prefill and decode of one point apart: how long a step takes, and what it has to read and compute."""

from collections.abc import Sequence
from zlib import crc32

import numpy as np

from bitbench.analysis.intervals import Resampler, Sample, estimate, sample
from bitbench.analysis.results.sides import PhaseSide, Side
from bitbench.records.profile import Phase
from bitbench.records.roof import MachineRoof, attainable
from bitbench.records.trial import TrialRecord
from bitbench.study.arrival import Arrival
from bitbench.study.model_cost import StepCost, decode_cost, prefill_cost, why_not
from bitbench.study.prompts import typical
from bitbench.study.variant import Variant
from bitbench.study.workload import Workload


def step_sample(phase: Phase, workload: Workload, trials: Sequence[TrialRecord]) -> Sample | None:
    """Seconds per step, from trials of one point that count; None where they do not tell.

    A decode step gives each sequence one token, so it lasts as long as the time per output token. The prefill of a
    batch is the time in which its requests wait for their first tokens; in a closed loop with several streams prefills
    mix with decoding, and there is no such time.
    """
    groups: dict[str, list[float]] = {}
    for trial in trials:
        seconds = trial.metrics.tpot_s if phase is Phase.DECODE else _prefill_s(workload, trial)
        if seconds is not None:
            groups.setdefault(trial.instance_id, []).append(seconds)
    if not groups:
        return None
    seed = [crc32(f"{trials[0].point.name} {phase.value}".encode())]
    return sample(list(groups.values()), Resampler(np.random.default_rng(seed)))


def _prefill_s(workload: Workload, trial: TrialRecord) -> float | None:
    is_one_batch = workload.arrival.kind is Arrival.BATCH or workload.concurrency == 1
    throughput = trial.metrics.input_throughput
    if not is_one_batch or workload.open_loop or throughput is None or workload.turns > 1:
        return None
    return workload.concurrency * typical(workload.input_tokens) / throughput


def phase_side(
    phase: Phase,
    workload: Workload,
    variant: Variant,
    side: Side,
    *,
    seconds: Sample,
    confidence: float,
    roof: MachineRoof | None,
) -> PhaseSide:
    kv_token_bytes = side.kv_bytes_per_token
    cost = _cost(phase, workload, variant, side.stored_bytes, kv_token_bytes)
    return PhaseSide(
        step=estimate(seconds, confidence),
        cost=cost,
        loaded_cost=_cost(phase, workload, variant, side.loaded_bytes, kv_token_bytes) if side.is_expanded else None,
        attainable=attainable(cost, roof, in_int8=promises_int8(variant)) if cost and roof else None,
    )


def promises_int8(variant: Variant) -> bool:
    """Its form lets the layers multiply 8-bit integers with each other."""
    return any(mark in (variant.form or "") for mark in ("w8a8-int", "int8da-int8w"))


def _cost(
    phase: Phase, workload: Workload, variant: Variant, weight_bytes: int | None, kv_token_bytes: int | None
) -> StepCost | None:
    if weight_bytes is None or why_not(variant.facts) or "input_tokens" in workload.unknown:
        return None
    prompt, answer = typical(workload.input_tokens), typical(workload.output_tokens)
    if phase is Phase.PREFILL:
        return prefill_cost(variant.facts, weight_bytes, workload.concurrency, prompt, kv_token_bytes)
    return decode_cost(variant.facts, weight_bytes, workload.concurrency, prompt + answer / 2, kv_token_bytes)

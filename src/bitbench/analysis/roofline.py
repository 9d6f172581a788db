"""Prefill and decode of each point apart: how long a step takes, how long it would take under the machine's roof,
and which group an operator of it belongs to."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pydantic import Field

from bitbench.analysis.absolute import sample_of_trials
from bitbench.analysis.configs import PhaseSide, Side, config_side, config_variant
from bitbench.analysis.intervals import Sample
from bitbench.analysis.results.estimate import Estimate
from bitbench.records.folder import StudyRecords
from bitbench.records.profile import Phase, ProfileGroup
from bitbench.records.roof import MachineRoof, PointRoof, attainable_under_roof
from bitbench.records.trial import TrialRecord
from bitbench.study.base import Spec
from bitbench.study.model_cost import StepCost, decode_cost, prefill_cost, why_cost_unknown
from bitbench.study.variant import Variant
from bitbench.study.workload import Arrival, Workload, typical_length
from bitbench.util import yaml_file


def phase_step_sample(
    phase: Phase, workload: Workload, trials: Sequence[TrialRecord]
) -> Sample | None:
    """Seconds per step, from trials of one point that count; None where they do not tell.

    A decode step gives each sequence one token, so it lasts as long as the time per output token. The prefill of a
    batch is the time in which its requests wait for their first tokens; in a closed loop with several streams prefills
    mix with decoding, and there is no such time.
    """
    known = []
    for trial in trials:
        seconds = trial.metrics.tpot_s if phase is Phase.DECODE else _prefill_s(workload, trial)
        if seconds is not None:
            known.append((trial, seconds))
    return sample_of_trials(known)


def _prefill_s(workload: Workload, trial: TrialRecord) -> float | None:
    is_one_batch = workload.arrival.kind is Arrival.BATCH or workload.concurrency == 1
    throughput = trial.metrics.input_throughput
    if not is_one_batch or workload.open_loop or throughput is None or workload.turns > 1:
        return None
    return workload.concurrency * typical_length(workload.input_tokens) / throughput


def phase_side(
    phase: Phase,
    workload: Workload,
    variant: Variant,
    side: Side,
    *,
    step: Estimate,
    roof: MachineRoof | None,
) -> PhaseSide:
    kv_token_bytes = side.kv_bytes_per_token
    cost = _cost(phase, workload, variant, side.stored_bytes, kv_token_bytes)
    return PhaseSide(
        step=step,
        cost=cost,
        loaded_cost=_cost(phase, workload, variant, side.loaded_bytes, kv_token_bytes)
        if side.is_expanded
        else None,
        attainable=attainable_under_roof(cost, roof, in_int8=_promises_int8(variant))
        if cost and roof
        else None,
    )


def _promises_int8(variant: Variant) -> bool:
    """Its form lets the layers multiply 8-bit integers with each other."""
    return any(mark in (variant.form or "") for mark in ("w8a8-int", "int8da-int8w"))


def _cost(
    phase: Phase,
    workload: Workload,
    variant: Variant,
    weight_bytes: int | None,
    kv_token_bytes: int | None,
) -> StepCost | None:
    if (
        weight_bytes is None
        or why_cost_unknown(variant.facts)
        or "input_tokens" in workload.unknown
    ):
        return None
    prompt, answer = typical_length(workload.input_tokens), typical_length(workload.output_tokens)
    if phase is Phase.PREFILL:
        return prefill_cost(
            variant.facts, weight_bytes, workload.concurrency, prompt, kv_token_bytes
        )
    return decode_cost(
        variant.facts, weight_bytes, workload.concurrency, prompt + answer / 2, kv_token_bytes
    )


def roofline_points(of: StudyRecords) -> tuple[PointRoof, ...]:
    """By workload, then phase. Without those whose cost is unknown; none where the roof was not measured."""
    if of.roof is None:
        return ()
    found = []
    for workload in of.plan.study.workloads:
        points = [point for point in of.plan.points if point.workload == workload.name]
        for phase in Phase:
            for point in points:
                seconds = phase_step_sample(phase, workload, of.counted(point))
                variant = config_variant(of.plan, point.config)
                if seconds is None or variant is None:
                    continue
                known = config_side(of, point.config, workload)
                step = Estimate(value=seconds.mean)
                side = phase_side(phase, workload, variant, known, step=step, roof=of.roof)
                if side.cost is not None and side.attainable is not None:
                    found.append(
                        PointRoof(
                            point=point,
                            phase=phase,
                            cost=side.cost,
                            attainable=side.attainable,
                            step_s=side.step.value,
                        )
                    )
    return tuple(found)


_FILE = Path(__file__).with_name("operator_groups.yaml")


class Rule(Spec):
    group: ProfileGroup
    names: tuple[str, ...] = Field(description="regular expressions for the whole name")
    owns: bool = Field(
        default=False,
        description="what such an operator calls belongs to its group, whatever it is",
    )


class GroupTable(Spec):
    rules: tuple[Rule, ...]

    def group_of(self, name: str) -> tuple[ProfileGroup, bool]:
        """The group, and whether the operators that it calls go with it."""
        return _group_of(self, name)


@cache
def _patterns(table: GroupTable) -> tuple[tuple[re.Pattern[str], Rule], ...]:
    return tuple(
        (re.compile("|".join(f"(?:{name})" for name in rule.names)), rule) for rule in table.rules
    )


@cache
def _group_of(table: GroupTable, name: str) -> tuple[ProfileGroup, bool]:
    for pattern, rule in _patterns(table):
        if pattern.fullmatch(name):
            return rule.group, rule.owns
    return ProfileGroup.OTHER, False


@cache
def operator_group_rules() -> GroupTable:
    text = _FILE.read_text(encoding="utf-8")
    return yaml_file.parse_yaml(
        text, GroupTable, name=_FILE.name, outline="`rules:` and a list", error=ValueError
    )

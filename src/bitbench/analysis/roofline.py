"""Prefill and decode of each point: the time of a step, and its time at the machine's roofline.

Also the groups that operators of a step belong to.
"""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pydantic import Field

from bitbench.analysis.absolute import summarize_trials
from bitbench.analysis.configs import PhaseSide, Side, find_config_variant, summarize_config_side
from bitbench.analysis.intervals import Sample
from bitbench.analysis.results.estimate import Estimate
from bitbench.records.folder import StudyRecords
from bitbench.records.profile import Phase, ProfileGroup
from bitbench.records.roof import MachineRoof, PointRoof, compute_attainable
from bitbench.records.trial import TrialRecord
from bitbench.study.base import Spec
from bitbench.study.model_cost import (
    StepCost,
    compute_decode_cost,
    compute_prefill_cost,
    explain_unknown_cost,
)
from bitbench.study.variant import Variant
from bitbench.study.workload import Arrival, Workload, get_typical_length
from bitbench.util import yaml_file


def find_phase_step_sample(
    phase: Phase, workload: Workload, trials: Sequence[TrialRecord]
) -> Sample | None:
    """Return the seconds per step, from trials of one point that count. None if unknown.

    A decode step gives each sequence one token, so it takes as long as the time per output token.
    The prefill of a batch is the time in which its requests wait for their first tokens. In a
    closed loop with several streams, prefills mix with decoding, so it has no such time.
    """
    step_times = []
    for trial in trials:
        seconds = (
            trial.metrics.tpot_s if phase is Phase.DECODE else _find_prefill_s(workload, trial)
        )
        if seconds is not None:
            step_times.append((trial, seconds))
    return summarize_trials(step_times)


def _find_prefill_s(workload: Workload, trial: TrialRecord) -> float | None:
    is_one_batch = workload.arrival.kind is Arrival.BATCH or workload.concurrency == 1
    throughput = trial.metrics.input_throughput
    if not is_one_batch or workload.open_loop or throughput is None or workload.turns > 1:
        return None
    return workload.concurrency * get_typical_length(workload.input_tokens) / throughput


def make_phase_side(
    phase: Phase,
    workload: Workload,
    variant: Variant,
    side: Side,
    *,
    step: Estimate,
    roof: MachineRoof | None,
) -> PhaseSide:
    """Return a config's step in one phase, with its cost and the attainable time."""
    kv_token_bytes = side.kv_bytes_per_token
    cost = _find_step_cost(phase, workload, variant, side.stored_bytes, kv_token_bytes)
    loaded_cost = None
    if side.is_expanded:
        loaded_cost = _find_step_cost(phase, workload, variant, side.loaded_bytes, kv_token_bytes)
    attainable = None
    if cost and roof:
        attainable = compute_attainable(cost, roof, in_int8=_is_int8_form(variant))
    return PhaseSide(step=step, cost=cost, loaded_cost=loaded_cost, attainable=attainable)


def _is_int8_form(variant: Variant) -> bool:
    """Return True if the form lets the layers multiply 8-bit integers with each other."""
    return any(mark in (variant.form or "") for mark in ("w8a8-int", "int8da-int8w"))


def _find_step_cost(
    phase: Phase,
    workload: Workload,
    variant: Variant,
    weight_bytes: int | None,
    kv_token_bytes: int | None,
) -> StepCost | None:
    is_unknown = explain_unknown_cost(variant.facts) or "input_tokens" in workload.unknown
    if weight_bytes is None or is_unknown:
        return None
    streams = workload.concurrency
    prompt = get_typical_length(workload.input_tokens)
    if phase is Phase.PREFILL:
        return compute_prefill_cost(variant.facts, weight_bytes, streams, prompt, kv_token_bytes)
    context = prompt + get_typical_length(workload.output_tokens) / 2
    return compute_decode_cost(variant.facts, weight_bytes, streams, context, kv_token_bytes)


def list_roofline_points(records: StudyRecords) -> tuple[PointRoof, ...]:
    """Return the steps of each workload and phase with their attainable times.

    Points of unknown cost are left out. The result is empty if the roofline was not measured.
    """
    if records.roof is None:
        return ()
    roofs = []
    for workload in records.plan.study.workloads:
        points = [point for point in records.plan.points if point.workload == workload.name]
        for phase in Phase:
            for point in points:
                seconds = find_phase_step_sample(phase, workload, records.counted(point))
                variant = find_config_variant(records.plan, point.config)
                if seconds is None or variant is None:
                    continue
                side = summarize_config_side(records, point.config, workload)
                step = Estimate(value=seconds.mean)
                result = make_phase_side(
                    phase, workload, variant, side, step=step, roof=records.roof
                )
                if result.cost is not None and result.attainable is not None:
                    roofs.append(
                        PointRoof(
                            point=point,
                            phase=phase,
                            cost=result.cost,
                            attainable=result.attainable,
                            step_s=step.value,
                        )
                    )
    return tuple(roofs)


_FILE = Path(__file__).with_name("operator_groups.yaml")


class Rule(Spec):
    """Names of operators that belong to one group."""

    group: ProfileGroup
    names: tuple[str, ...] = Field(description="regular expressions for the whole name")
    owns: bool = Field(
        default=False,
        description="what such an operator calls belongs to its group, whatever it is",
    )


class GroupTable(Spec):
    """The rules that group operators. The first rule that matches decides."""

    rules: tuple[Rule, ...]

    def group_of(self, name: str) -> tuple[ProfileGroup, bool]:
        """Return the group of an operator, and whether the operators that it calls belong to it."""
        return _find_group(self, name)


@cache
def _compile_patterns(table: GroupTable) -> tuple[tuple[re.Pattern[str], Rule], ...]:
    patterns = []
    for rule in table.rules:
        alternatives = "|".join(f"(?:{name})" for name in rule.names)
        patterns.append((re.compile(alternatives), rule))
    return tuple(patterns)


@cache
def _find_group(table: GroupTable, name: str) -> tuple[ProfileGroup, bool]:
    for pattern, rule in _compile_patterns(table):
        if pattern.fullmatch(name):
            return rule.group, rule.owns
    return ProfileGroup.OTHER, False


@cache
def load_operator_groups() -> GroupTable:
    """Load the rules that come with bitbench."""
    text = _FILE.read_text(encoding="utf-8")
    return yaml_file.parse_yaml(
        text, GroupTable, name=_FILE.name, outline="`rules:` and a list", error=ValueError
    )

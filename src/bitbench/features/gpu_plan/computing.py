"""A plan on devices that are not here: what fits, on which kernels, and how long it would take.

Nothing of it was measured. Memory is counted from the sizes of the model; time is what the roofline of the device
allows, and twice that with some milliseconds for each step, which is where engines usually are.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bitbench.engines.registry import registered_engines_of
from bitbench.features.gpu_plan.devices import (
    DeviceClass,
    DeviceNeed,
    DevicePlan,
    DeviceUse,
    GpuPlanAnswer,
    gpu_plan_device_use,
)
from bitbench.machine.workplace import Workplace
from bitbench.planning.compatibility import look_up_compatibility
from bitbench.planning.estimate import ASSUMED_SCORE_OVERHEAD_S, estimate_written_tokens
from bitbench.planning.plan import amount_of, estimator_of, plan_study_source
from bitbench.planning.readiness import Readiness, readiness_environments, readiness_packages
from bitbench.planning.variants import VariantStore
from bitbench.study.model_cost import (
    StepCost,
    decode_cost,
    expected_weight_bytes,
    prefill_cost,
    why_cost_unknown,
)
from bitbench.study.plan import Config, Plan, Point, QualityRefusal, Refusal, Support
from bitbench.study.study import EngineSetup, Study
from bitbench.study.study_file import StudySource
from bitbench.study.variant import Variant
from bitbench.study.workload import Workload, typical_length
from bitbench.util.units import show_bytes

# Besides weights and KV cache: the CUDA context, the activations of one step, captured graphs. Rough.
ASSUMED_OVERHEAD_BYTES = 2 * 2**30
ASSUMED_LOAD_BYTES_PER_S = 1e9  # from a disk to devices, at each start
# A published record: 0.5 billion parameters in bf16 on an A100, batch 1: 270 tokens/s, where the roofline allows 2,000.
ASSUMED_STEP_OVERHEAD_S = 0.004
ASSUMED_ROOF_SHARE = 0.5
_MOST_DEVICES = 16
_IN_INT8, _IN_FP8 = "w8a8-int", "w8a8-float"
_CHOOSING_KERNELS = ("linear-backend", "quantization")  # arguments by which a person chooses
_NOT_THIS_MACHINE = "planned for another machine"  # of an environment


def compute_gpu_plan(study: Path | Study, device: DeviceClass, at: Workplace) -> GpuPlanAnswer:
    """The plan on devices that this machine need not have, what it takes there, and what to install there first."""
    source = StudySource.of(study)
    store = VariantStore(at.home, source.folder)
    engines = registered_engines_of(source.study)
    start_s = {setup.name: engines[setup.engine].start_s for setup in source.study.engines}
    asked = plan_study_source(source, store, at, device.compute_capability)
    plan, on_device = _plan_on_device(asked, device, start_s)
    names = sorted({*readiness_environments(plan), *store.makers(plan)})
    missing = dict.fromkeys(names, _NOT_THIS_MACHINE)
    ready = Readiness(missing, tuple(store.missing_models(plan)), packages=readiness_packages(plan))
    return GpuPlanAnswer(
        plan=plan,
        environments=dict(ready.environments),
        missing_models=ready.missing_models,
        before_run=ready.commands,
        amount=replace(amount_of(plan, estimator_of(plan, at)), seconds=on_device.seconds),
        on_device=on_device,
    )


@dataclass(frozen=True)
class _Fit:
    """A variant on a setup: what each device holds."""

    variant: Variant
    use: DeviceUse
    device: DeviceClass
    weight_bytes: int | None

    @property
    def room_bytes(self) -> int:
        return int(self.device.memory_bytes * self.use.memory_share)

    def kv_bytes(self, tokens: int, devices: int | None = None) -> int | None:
        """Keys and values of so many tokens on each device; heads are shared out, and one is not divided."""
        per_token = self.variant.facts.kv_bytes_per_token(self.use.kv_value_bytes)
        if per_token is None:
            return None
        shares = min(devices or self.use.devices, self.variant.facts.kv_heads or 1)
        return math.ceil(tokens * per_token / shares)

    def needed_bytes(self, workload: Workload, devices: int | None = None) -> int | None:
        """With one request at its full length: others may wait. None where a size is unknown."""
        kv_bytes = self.kv_bytes(self.room_for(workload), devices)
        if self.weight_bytes is None or kv_bytes is None:
            return None
        return (
            math.ceil(self.weight_bytes / (devices or self.use.devices))
            + kv_bytes
            + ASSUMED_OVERHEAD_BYTES
        )

    def room_for(self, workload: Workload) -> int:
        """Tokens of one request."""
        return max(workload.context_tokens, self.use.context_tokens or 0)

    def fits(self, workload: Workload, devices: int | None = None) -> bool:
        """What is unknown is tried."""
        return (self.needed_bytes(workload, devices) or 0) <= self.room_bytes

    def waits(self, workload: Workload) -> bool:
        needed, request_bytes = self.needed_bytes(workload), self.kv_bytes(workload.context_tokens)
        if needed is None or request_bytes is None:
            return False
        first = self.kv_bytes(self.room_for(workload)) or 0
        return needed - first + max(workload.concurrency * request_bytes, first) > self.room_bytes

    def refusal(self, workload: Workload) -> str:
        needed = self.needed_bytes(workload) or 0
        tokens = self.room_for(workload)
        enough = 2 * self.use.devices
        while enough <= _MOST_DEVICES and not self.fits(workload, enough):
            enough *= 2
        would = f"{enough} devices would be enough"
        advice = would if enough <= _MOST_DEVICES else f"{_MOST_DEVICES} would not be enough either"
        return (
            f"It needs {show_bytes(needed)} on each of {self.use.devices} × {self.device.title} (weights "
            f"{show_bytes(math.ceil((self.weight_bytes or 0) / self.use.devices))}, KV cache of "
            f"{tokens:,} tokens {show_bytes(self.kv_bytes(tokens))}, about {show_bytes(ASSUMED_OVERHEAD_BYTES)} "
            f"besides) and may take {show_bytes(self.room_bytes)}; {advice}."
        )


def _plan_on_device(
    plan: Plan, device: DeviceClass, start_s: Mapping[str, float]
) -> tuple[Plan, DevicePlan]:
    """The plan without what does not fit, which is refused with the reason, and what it takes. `start_s`: by the name
    of a setup, without loading weights."""
    with_model = [
        config for config in plan.configs if plan.variant(config.variant).form is not None
    ]
    fits = {config: _fit(plan, config, device) for config in with_model}
    refusals = [
        Refusal(point=point, reason=fit.refusal(workload))
        for point in plan.points
        if (fit := fits.get(point.config))
        and not fit.fits(workload := plan.study.workload(point.workload))
    ]
    refused = {refusal.point for refusal in refusals}
    kept = tuple(point for point in plan.points if point not in refused)
    without_room = {point.config for point in refused} - {point.config for point in kept}
    reasons = {
        refusal.point.config: refusal.reason for refusal in reversed(refusals)
    }  # the first of each
    limited = plan.model_copy(
        update={
            "points": kept,
            "refusals": (*plan.refusals, *refusals),
            "expectations": tuple(
                expectation
                for expectation in plan.expectations
                if expectation.config not in without_room
            ),
            "quality": tuple(config for config in plan.quality if config not in without_room),
            "quality_refusals": (
                *plan.quality_refusals,
                *(
                    QualityRefusal(config=config, reason=reasons[config])
                    for config in plan.quality
                    if config in without_room
                ),
            ),
        }
    )
    times = _Times(limited, fits, start_s)
    devices = max(
        (fits[config].use.devices for config in limited.configs if config in fits), default=1
    )
    return limited, DevicePlan(
        device=device,
        devices=devices,
        needs=tuple(_need(plan, limited, config, fit) for config, fit in fits.items()),
        seconds=(times.total_s(most=False), times.total_s(most=True)),
        untimed=tuple(
            config for config in limited.configs if config in fits and not times.knows(config)
        ),
    )


def _fit(plan: Plan, config: Config, device: DeviceClass) -> _Fit:
    variant = plan.variant(config.variant)
    weight_bytes = variant.weight_bytes
    if weight_bytes is None and variant.form:
        weight_bytes = expected_weight_bytes(variant.facts, variant.form)
    return _Fit(
        variant, gpu_plan_device_use(plan.study.engine(config.engine)), device, weight_bytes
    )


def _need(asked: Plan, limited: Plan, config: Config, fit: _Fit) -> DeviceNeed:
    """At the longest workload that fits; where none does, at the shortest that was asked."""
    wanted, runs = (
        [asked.study.workload(point.workload) for point in plan.points if point.config == config]
        for plan in (asked, limited)
    )
    by_length = sorted(runs or wanted, key=lambda workload: workload.context_tokens)
    shown = (by_length[-1] if runs else by_length[0]) if by_length else None
    return DeviceNeed(
        config=config,
        use=fit.use,
        kernel=_kernel(fit, asked.study.engine(config.engine)),
        weight_bytes=fit.weight_bytes,
        request_kv_bytes=None if shown is None else fit.kv_bytes(fit.room_for(shown)),
        needed_bytes=None if shown is None else fit.needed_bytes(shown),
        room_bytes=fit.room_bytes,
        fits=bool(runs) or not wanted,
        too_long=tuple(workload.name for workload in wanted if workload not in runs),
        waits=tuple(workload.name for workload in runs if fit.waits(workload)),
    )


def _kernel(fit: _Fit, setup: EngineSetup) -> str | None:
    chosen = next((str(setup.args[name]) for name in _CHOOSING_KERNELS if name in setup.args), None)
    if chosen is not None:
        return f"{chosen} (chosen)"
    form = fit.variant.form or ""
    while form:  # a special form, such as a sparse one, computes on the kernel of the general one
        row = look_up_compatibility(
            form,
            setup.engine,
            "cuda",
            fit.variant.at_load,
            capability=fit.device.compute_capability,
        )
        if row is not None and row.kernel is not None:
            return row.kernel
        form = form.rpartition("/")[0]
    return None


class _Times:
    """Seconds of starts and trials, at the roofline or as engines usually are."""

    def __init__(
        self, plan: Plan, fits: Mapping[Config, _Fit], start_s: Mapping[str, float]
    ) -> None:
        self._plan, self._fits, self._start_s = plan, fits, start_s

    def knows(self, config: Config) -> bool:
        fit = self._fits[config]
        return fit.weight_bytes is not None and why_cost_unknown(fit.variant.facts) is None

    def total_s(self, *, most: bool) -> float:
        measure = self._plan.study.measure
        starts, trials = (
            (measure.starts.max, measure.trials.max)
            if most
            else (measure.starts.min, measure.trials.min)
        )
        hopeless = {
            expectation.config
            for expectation in self._plan.expectations
            if expectation.verdict is Support.DOES_NOT_RUN
        }
        points = [point for point in self._plan.points if point.config not in hopeless]
        timed = {point.config for point in points}
        workloads = {workload.name: workload for workload in self._plan.study.workloads}
        one_each_s = sum(
            self._trial_s(point, workloads[point.workload], most=most) for point in points
        )
        warm_ups_s = sum(
            self._trial_s(point, workloads[point.workload].warm_up, most=most) for point in points
        )
        starting_s = sum(self._starting_s(config) for config in timed)
        once_s = sum(self._starting_s(config) for config in set(self._plan.configs) - timed)
        scoring_s = sum(self._scoring_s(config, most=most) for config in self._plan.quality)
        total_s = starts * (starting_s + warm_ups_s + trials * one_each_s) + once_s + scoring_s
        budget_s = measure.budget
        return total_s if budget_s is None else min(total_s, budget_s)

    def _starting_s(self, config: Config) -> float:
        loading_s = (
            (self._fits[config].weight_bytes or 0) / ASSUMED_LOAD_BYTES_PER_S
            if config in self._fits
            else 0
        )
        return self._start_s[config.engine] + loading_s

    def _trial_s(self, point: Point, workload: Workload, *, most: bool) -> float:
        if point.config not in self._fits or not self.knows(point.config):
            return 0.0
        fit = self._fits[point.config]
        read, written = (
            typical_length(workload.input_tokens),
            typical_length(workload.output_tokens),
        )
        facts, weight_bytes, batch = fit.variant.facts, fit.weight_bytes or 0, workload.concurrency
        kv = facts.kv_bytes_per_token(fit.use.kv_value_bytes)
        prefill_s = _step_s(prefill_cost(facts, weight_bytes, batch, read, kv), fit, most=most)
        decode_s = _step_s(
            decode_cost(facts, weight_bytes, batch, read + written / 2, kv), fit, most=most
        )
        rounds = (workload.request_count or 0) / batch
        return max(rounds * (prefill_s + written * decode_s), workload.duration or 0.0)

    def _scoring_s(self, config: Config, *, most: bool) -> float:
        quality = self._plan.study.quality
        if quality is None or config not in self._fits or not self.knows(config):
            return 0.0
        fit = self._fits[config]
        step = decode_cost(fit.variant.facts, fit.weight_bytes or 0, 1, quality.window_tokens)
        scored = quality.windows * quality.window_tokens
        return scored * ASSUMED_SCORE_OVERHEAD_S + estimate_written_tokens(quality) * _step_s(
            step, fit, most=most
        )


def _step_s(cost: StepCost, fit: _Fit, *, most: bool) -> float:
    """Devices read and compute at the same time; what they say to each other is not in it."""
    device, count, form = fit.device, fit.use.devices, fit.variant.form or ""
    peak = device.flops_per_s
    if _IN_INT8 in form:
        peak = device.int8_ops_per_s
    elif _IN_FP8 in form:
        peak = device.fp8_flops_per_s or device.flops_per_s
    memory_s = cost.size_bytes / device.read_bytes_per_s
    arithmetic_s = cost.matmul_flops / peak + cost.attention_flops / device.flops_per_s
    roof_s = max(memory_s, arithmetic_s) / count
    return roof_s / ASSUMED_ROOF_SHARE + ASSUMED_STEP_OVERHEAD_S if most else roof_s

"""A plan for GPUs that this machine need not have: the configs that fit, their kernels, and the
time that they would take.

Nothing here is measured. Memory follows from the sizes of the model. The minimum time is the
roofline of the device. The maximum is twice the roofline plus some milliseconds per step, where
engines usually are.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bitbench.engines.registry import load_study_engines
from bitbench.features.gpu_plan.devices import (
    DeviceClass,
    DeviceNeed,
    DevicePlan,
    DeviceUse,
    GpuPlanAnswer,
    make_device_use,
)
from bitbench.machine.workplace import Workplace
from bitbench.planning.compatibility import look_up_compatibility
from bitbench.planning.estimate import ASSUMED_SCORE_OVERHEAD_S, estimate_written_tokens
from bitbench.planning.plan import estimate_study_size, make_estimator, plan_study_source
from bitbench.planning.readiness import Readiness, list_needed_environments, list_needed_packages
from bitbench.planning.variants import VariantStore
from bitbench.study.model_cost import (
    StepCost,
    compute_decode_cost,
    compute_prefill_cost,
    estimate_weight_bytes,
    explain_unknown_cost,
)
from bitbench.study.plan import Config, Plan, Point, QualityRefusal, Refusal, Support
from bitbench.study.study import EngineSetup, Study
from bitbench.study.study_file import StudySource
from bitbench.study.variant import Variant
from bitbench.study.workload import Workload, get_typical_length
from bitbench.util.units import show_bytes

# The CUDA context, the activations of one step, and captured graphs. A rough value.
ASSUMED_OVERHEAD_BYTES = 2 * 2**30
ASSUMED_LOAD_BYTES_PER_S = 1e9  # from a disk to devices, at each start
# A published measurement: 0.5 billion parameters in bf16 on an A100 with batch 1 reach 270
# tokens/s, and the roofline allows 2,000.
ASSUMED_STEP_OVERHEAD_S = 0.004
ASSUMED_ROOF_SHARE = 0.5
_MOST_DEVICES = 16
_IN_INT8 = "w8a8-int"
_IN_FP8 = "w8a8-float"
_CHOOSING_KERNELS = ("linear-backend", "quantization")  # arguments that choose a kernel
_NOT_THIS_MACHINE = "planned for another machine"  # the problem of every environment


def compute_gpu_plan(
    study: Path | Study, device: DeviceClass, workplace: Workplace
) -> GpuPlanAnswer:
    """Return the plan for devices that this machine need not have, with its memory and time, and
    the commands that must be run on that machine first."""
    source = StudySource.of(study)
    store = VariantStore(workplace.home, source.folder)
    engines = load_study_engines(source.study)
    start_s = {setup.name: engines[setup.engine].start_s for setup in source.study.engines}
    whole_plan = plan_study_source(source, store, workplace, device.compute_capability)
    plan, on_device = _plan_on_device(whole_plan, device, start_s)
    names = sorted({*list_needed_environments(plan), *store.list_makers(plan)})
    missing = dict.fromkeys(names, _NOT_THIS_MACHINE)
    ready = Readiness(
        missing, tuple(store.missing_models(plan)), packages=list_needed_packages(plan)
    )
    amount = estimate_study_size(plan, make_estimator(plan, workplace))
    return GpuPlanAnswer(
        plan=plan,
        environments=dict(ready.environments),
        missing_models=ready.missing_models,
        before_run=ready.commands,
        amount=replace(amount, seconds=on_device.seconds),
        on_device=on_device,
    )


@dataclass(frozen=True)
class _Fit:
    """A variant on a setup, and the memory that it needs on each device."""

    variant: Variant
    use: DeviceUse
    device: DeviceClass
    weight_bytes: int | None

    @property
    def room_bytes(self) -> int:
        return int(self.device.memory_bytes * self.use.memory_share)

    def kv_bytes(self, tokens: int, devices: int | None = None) -> int | None:
        """Return the bytes of keys and values of this many tokens on each device, or None if they
        are unknown. Devices share the heads, but a single head is not divided."""
        per_token = self.variant.facts.kv_bytes_per_token(self.use.kv_value_bytes)
        if per_token is None:
            return None
        shares = min(devices or self.use.devices, self.variant.facts.kv_heads or 1)
        return math.ceil(tokens * per_token / shares)

    def needed_bytes(self, workload: Workload, devices: int | None = None) -> int | None:
        """Return the bytes on each device for one request at full length, since others may wait.
        Return None if a size is unknown."""
        kv_bytes = self.kv_bytes(self.count_reserved_tokens(workload), devices)
        if self.weight_bytes is None or kv_bytes is None:
            return None
        weight_bytes = math.ceil(self.weight_bytes / (devices or self.use.devices))
        return weight_bytes + kv_bytes + ASSUMED_OVERHEAD_BYTES

    def count_reserved_tokens(self, workload: Workload) -> int:
        """Return the tokens that are reserved for one request."""
        return max(workload.context_tokens, self.use.context_tokens or 0)

    def fits(self, workload: Workload, devices: int | None = None) -> bool:
        """Return True if one request fits, or if the size is unknown."""
        return (self.needed_bytes(workload, devices) or 0) <= self.room_bytes

    def waits(self, workload: Workload) -> bool:
        """Return True if the concurrent requests do not fit into the KV cache all at once."""
        needed_bytes = self.needed_bytes(workload)
        request_bytes = self.kv_bytes(workload.context_tokens)
        if needed_bytes is None or request_bytes is None:
            return False
        reserved_bytes = self.kv_bytes(self.count_reserved_tokens(workload)) or 0
        cache_bytes = max(workload.concurrency * request_bytes, reserved_bytes)
        return needed_bytes - reserved_bytes + cache_bytes > self.room_bytes

    def refusal(self, workload: Workload) -> str:
        """Return why the workload does not fit, and how many devices would be enough."""
        needed = self.needed_bytes(workload) or 0
        weights = math.ceil((self.weight_bytes or 0) / self.use.devices)
        tokens = self.count_reserved_tokens(workload)
        enough = 2 * self.use.devices
        while enough <= _MOST_DEVICES and not self.fits(workload, enough):
            enough *= 2
        advice = f"{enough} devices would be enough"
        if enough > _MOST_DEVICES:
            advice = f"{_MOST_DEVICES} would not be enough either"
        return (
            f"It needs {show_bytes(needed)} on each of {self.use.devices} × {self.device.title} "
            f"(weights {show_bytes(weights)}, "
            f"KV cache of {tokens:,} tokens {show_bytes(self.kv_bytes(tokens))}, "
            f"about {show_bytes(ASSUMED_OVERHEAD_BYTES)} besides) "
            f"and may take {show_bytes(self.room_bytes)}; {advice}."
        )


def _plan_on_device(
    plan: Plan, device: DeviceClass, start_s: Mapping[str, float]
) -> tuple[Plan, DevicePlan]:
    """Return the plan with points that do not fit refused, and its needs and times on the device.
    `start_s` is the start time by setup, without loading weights."""
    fits: dict[Config, _Fit] = {}
    for config in plan.configs:
        if plan.variant(config.variant).form is not None:
            fits[config] = _make_fit(plan, config, device)
    limited = _refuse_what_does_not_fit(plan, fits)
    times = _Times(limited, fits, start_s)
    fitting = [config for config in limited.configs if config in fits]
    return limited, DevicePlan(
        device=device,
        devices=max((fits[config].use.devices for config in fitting), default=1),
        needs=tuple(_make_need(plan, limited, config, fit) for config, fit in fits.items()),
        seconds=(times.estimate_total_s(most=False), times.estimate_total_s(most=True)),
        untimed=tuple(config for config in fitting if not times.knows(config)),
    )


def _refuse_what_does_not_fit(plan: Plan, fits: Mapping[Config, _Fit]) -> Plan:
    """Return the plan with points that do not fit refused. If no point of a config fits, its
    quality is refused too, with the reason of the first."""
    points: list[Point] = []
    refusals: list[Refusal] = []
    for point in plan.points:
        fit = fits.get(point.config)
        workload = plan.study.workload(point.workload)
        if fit is None or fit.fits(workload):
            points.append(point)
        else:
            refusals.append(Refusal(point=point, reason=fit.refusal(workload)))
    remaining = {point.config for point in points}
    reasons: dict[Config, str] = {}
    for refusal in refusals:
        if refusal.point.config not in remaining:
            reasons.setdefault(refusal.point.config, refusal.reason)
    expectations = [item for item in plan.expectations if item.config not in reasons]
    quality_refusals = [
        QualityRefusal(config=config, reason=reasons[config])
        for config in plan.quality
        if config in reasons
    ]
    return plan.model_copy(
        update={
            "points": tuple(points),
            "refusals": (*plan.refusals, *refusals),
            "expectations": tuple(expectations),
            "quality": tuple(config for config in plan.quality if config not in reasons),
            "quality_refusals": (*plan.quality_refusals, *quality_refusals),
        }
    )


def _make_fit(plan: Plan, config: Config, device: DeviceClass) -> _Fit:
    variant = plan.variant(config.variant)
    weight_bytes = variant.weight_bytes
    if weight_bytes is None and variant.form:
        weight_bytes = estimate_weight_bytes(variant.facts, variant.form)
    return _Fit(variant, make_device_use(plan.study.engine(config.engine)), device, weight_bytes)


def _make_need(plan: Plan, limited: Plan, config: Config, fit: _Fit) -> DeviceNeed:
    """Return what a config needs on each device, for the longest workload that fits, or for the
    shortest one if none fits."""
    workloads = _list_workloads(config, plan)
    running = _list_workloads(config, limited)
    sized = None
    if running:
        sized = max(reversed(running), key=lambda workload: workload.context_tokens)
    elif workloads:
        sized = min(workloads, key=lambda workload: workload.context_tokens)
    return DeviceNeed(
        config=config,
        use=fit.use,
        kernel=_find_kernel(fit, plan.study.engine(config.engine)),
        weight_bytes=fit.weight_bytes,
        request_kv_bytes=None if sized is None else fit.kv_bytes(fit.count_reserved_tokens(sized)),
        needed_bytes=None if sized is None else fit.needed_bytes(sized),
        room_bytes=fit.room_bytes,
        fits=bool(running) or not workloads,
        too_long=tuple(workload.name for workload in workloads if workload not in running),
        waits=tuple(workload.name for workload in running if fit.waits(workload)),
    )


def _list_workloads(config: Config, plan: Plan) -> list[Workload]:
    return [plan.study.workload(point.workload) for point in plan.points if point.config == config]


def _find_kernel(fit: _Fit, setup: EngineSetup) -> str | None:
    """Return the kernel that the study chooses, or else the expected one. None if it is unknown."""
    for name in _CHOOSING_KERNELS:
        if name in setup.args:
            return f"{setup.args[name]} (chosen)"
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
    """An estimate in seconds: at the roofline, or with `most` at the usual speed of engines."""

    def __init__(
        self, plan: Plan, fits: Mapping[Config, _Fit], start_s: Mapping[str, float]
    ) -> None:
        """Take the start times in `start_s` by the name of the setup, without loading weights."""
        self._plan = plan
        self._fits = fits
        self._start_s = start_s

    def knows(self, config: Config) -> bool:
        """Return True if the cost of a step is known."""
        fit = self._fits[config]
        return fit.weight_bytes is not None and explain_unknown_cost(fit.variant.facts) is None

    def estimate_total_s(self, *, most: bool) -> float:
        """Return the seconds of the whole plan, but at most its budget. Configs that are expected
        to fail do not count."""
        plan = self._plan
        measure = plan.study.measure
        starts = measure.starts.max if most else measure.starts.min
        trials = measure.trials.max if most else measure.trials.min
        failing: set[Config] = set()
        for expectation in plan.expectations:
            if expectation.verdict is Support.DOES_NOT_RUN:
                failing.add(expectation.config)
        timed: set[Config] = set()
        one_each_s = 0.0
        warm_ups_s = 0.0
        for point in plan.points:
            if point.config not in failing:
                workload = plan.study.workload(point.workload)
                timed.add(point.config)
                one_each_s += self._trial_s(point, workload, most=most)
                warm_ups_s += self._trial_s(point, workload.warm_up, most=most)
        starting_s = sum(self._estimate_starting_s(config) for config in timed)
        once_s = sum(self._estimate_starting_s(config) for config in set(plan.configs) - timed)
        scoring_s = sum(self._estimate_scoring_s(config, most=most) for config in plan.quality)
        total_s = starts * (starting_s + warm_ups_s + trials * one_each_s) + once_s + scoring_s
        return total_s if measure.budget is None else min(total_s, measure.budget)

    def _estimate_starting_s(self, config: Config) -> float:
        loading_s = 0.0
        if config in self._fits:
            loading_s = (self._fits[config].weight_bytes or 0) / ASSUMED_LOAD_BYTES_PER_S
        return self._start_s[config.engine] + loading_s

    def _trial_s(self, point: Point, workload: Workload, *, most: bool) -> float:
        """Return the seconds of a trial, or 0 if the cost of a step is unknown."""
        if point.config not in self._fits or not self.knows(point.config):
            return 0.0
        fit = self._fits[point.config]
        input_tokens = get_typical_length(workload.input_tokens)
        output_tokens = get_typical_length(workload.output_tokens)
        mean_context = input_tokens + output_tokens / 2
        facts = fit.variant.facts
        weight_bytes = fit.weight_bytes or 0
        batch = workload.concurrency
        kv = facts.kv_bytes_per_token(fit.use.kv_value_bytes)
        prefill = compute_prefill_cost(facts, weight_bytes, batch, input_tokens, kv)
        decode = compute_decode_cost(facts, weight_bytes, batch, mean_context, kv)
        prefill_s = _estimate_step_s(prefill, fit, most=most)
        decode_s = _estimate_step_s(decode, fit, most=most)
        rounds = (workload.request_count or 0) / batch
        return max(rounds * (prefill_s + output_tokens * decode_s), workload.duration or 0.0)

    def _estimate_scoring_s(self, config: Config, *, most: bool) -> float:
        """Return the seconds of a quality measurement, or 0 if the cost of a step is unknown."""
        quality = self._plan.study.quality
        if quality is None or config not in self._fits or not self.knows(config):
            return 0.0
        fit = self._fits[config]
        step = compute_decode_cost(
            fit.variant.facts, fit.weight_bytes or 0, 1, quality.window_tokens
        )
        score_s = quality.windows * quality.window_tokens * ASSUMED_SCORE_OVERHEAD_S
        return score_s + estimate_written_tokens(quality) * _estimate_step_s(step, fit, most=most)


def _estimate_step_s(cost: StepCost, fit: _Fit, *, most: bool) -> float:
    """Return the seconds of a step, with reads and arithmetic at the same time. Communication
    between devices does not count."""
    device = fit.device
    form = fit.variant.form or ""
    peak = device.flops_per_s
    if _IN_INT8 in form:
        peak = device.int8_ops_per_s
    elif _IN_FP8 in form:
        peak = device.fp8_flops_per_s or device.flops_per_s
    memory_s = cost.size_bytes / device.read_bytes_per_s
    arithmetic_s = cost.matmul_flops / peak + cost.attention_flops / device.flops_per_s
    roofline_s = max(memory_s, arithmetic_s) / fit.use.devices
    if not most:
        return roofline_s
    return roofline_s / ASSUMED_ROOF_SHARE + ASSUMED_STEP_OVERHEAD_S

"""How long a study will take: from what was measured where there is something, else from rough figures."""

from collections.abc import Mapping, Sequence
from statistics import mean

from bitbench.core.asked.arrival import mean_rate
from bitbench.core.asked.prompts import typical
from bitbench.core.asked.quality import Quality, Scoring
from bitbench.core.asked.workload import Workload
from bitbench.core.cell import Cell, Contender, Plan
from bitbench.core.ports import Engine
from bitbench.core.recorded.trial import InstanceRecord, TrialRecord
from bitbench.core.recorded.variant import Variant

# Two cores of a server CPU, as measured with SmolLM2-135M: good to a factor of three, no more.
ASSUMED_READ_BYTES_PER_S = 10e9
ASSUMED_FLOPS_PER_S = 0.3e12
ASSUMED_TOKEN_OVERHEAD_S = 0.010
NULL_TOKEN_S = 0.002
ASSUMED_SCORE_OVERHEAD_S = 0.004  # to sort a vocabulary, and to write and read the likeliest of it
ASSUMED_ANSWERS = 12


def guess_trial_s(variant: Variant, workload: Workload) -> float:
    """In a closed loop the engine decides; in an open loop the schedule does, unless the engine cannot keep up."""
    think_s = workload.conversation.think if workload.conversation else 0.0
    rounds = (workload.request_count or 0) / workload.concurrency
    busy_s = rounds * _round_s(variant, workload, workload.concurrency)
    if not workload.open_loop:
        return busy_s + rounds * think_s * (workload.turns - 1) / workload.turns
    last_s = workload.turns * _round_s(variant, workload, 1) + (workload.turns - 1) * think_s
    return max(busy_s, _schedule_s(workload) + last_s)


def guess_quality_s(variant: Variant, quality: Quality, scoring: Scoring | None) -> float:
    """Windows one after the other, then answers; tasks are not known."""
    if variant.facts.parameters is None:
        return 0.0
    scored = quality.windows * quality.window_tokens
    step_s = (variant.weight_bytes or 0) / ASSUMED_READ_BYTES_PER_S + ASSUMED_TOKEN_OVERHEAD_S
    token_s = step_s if scoring is Scoring.NEXT_TOKEN else 2 * variant.facts.parameters / ASSUMED_FLOPS_PER_S
    return scored * (token_s + ASSUMED_SCORE_OVERHEAD_S) + ASSUMED_ANSWERS * quality.answer_tokens * step_s


def _round_s(variant: Variant, workload: Workload, streams: int) -> float:
    """One request on each stream: prefill is bound by arithmetic, decode by reading the weights once per step."""
    said, answered, turns = typical(workload.input_tokens), typical(workload.output_tokens), workload.turns
    if variant.facts.parameters is None or variant.weight_bytes is None:
        return answered * NULL_TOKEN_S
    prompt_tokens = (turns + 1) / 2 * said + (turns - 1) / 2 * answered  # with the history, over all turns
    prefill_s = 2 * variant.facts.parameters * prompt_tokens * streams / ASSUMED_FLOPS_PER_S
    step_s = variant.weight_bytes / ASSUMED_READ_BYTES_PER_S + ASSUMED_TOKEN_OVERHEAD_S
    return prefill_s + answered * step_s


def _schedule_s(workload: Workload) -> float:
    """From the first arrival to the last; not known for the first requests of a trace."""
    if workload.duration is not None:
        return workload.duration
    rate = mean_rate(workload.arrival)
    return 0.0 if rate is None or workload.requests is None else workload.requests / workload.turns / rate


class Estimator:
    """Seconds for starts and trials; measured figures replace guesses as they come in."""

    def __init__(
        self,
        plan: Plan,
        engines: Mapping[str, Engine],
        trials: Sequence[TrialRecord] = (),
        instances: Sequence[InstanceRecord] = (),
    ) -> None:
        self._plan = plan
        self._engines = engines
        self._trial_s: dict[Cell, list[float]] = {}
        self._start_s: dict[str, list[float]] = {}
        for trial in trials:
            self.add(trial)
        for instance in instances:
            self.add(instance)

    def add(self, record: TrialRecord | InstanceRecord) -> None:
        if isinstance(record, TrialRecord):
            if record.duration_s is None:
                return
            self._trial_s.setdefault(record.cell, []).append(record.duration_s)
        elif record.ready_s is not None:
            self._start_s.setdefault(record.contender.engine, []).append(record.ready_s)

    @property
    def measured(self) -> bool:
        return bool(self._trial_s)

    def trial_s(self, cell: Cell) -> float:
        if cell in self._trial_s:
            return mean(self._trial_s[cell])
        variant = self._plan.variant(cell.contender.variant)
        return guess_trial_s(variant, self._plan.study.workload(cell.workload))

    def start_s(self, setup_name: str) -> float:
        if setup_name in self._start_s:
            return mean(self._start_s[setup_name])
        return self._engine(setup_name).start_s

    def _engine(self, setup_name: str) -> Engine:
        return self._engines[self._plan.study.engine(setup_name).engine]

    @property
    def _timed(self) -> set[Contender]:
        return {cell.contender for cell in self._plan.cells}

    @property
    def _only_quality(self) -> set[Contender]:
        """Started once."""
        return set(self._plan.quality) - self._timed

    def _starts_s(self, instances: int) -> float:
        timed_s = sum(self.start_s(contender.engine) for contender in self._timed)
        return instances * timed_s + sum(self.start_s(contender.engine) for contender in self._only_quality)

    def _quality_s(self) -> float:
        quality = self._plan.study.quality
        if quality is None:
            return 0.0
        return sum(
            guess_quality_s(self._plan.variant(one.variant), quality, self._engine(one.engine).scoring)
            for one in self._plan.quality
        )

    def remaining_s(self, done: Mapping[Cell, int], starts_done: int) -> float:
        """Time for the minimum that is left; `done` counts measured trials of each cell."""
        measure = self._plan.study.measure
        needed = measure.instances.min * measure.trials.min
        trials_s = sum(max(needed - done.get(cell, 0), 0) * self.trial_s(cell) for cell in self._plan.cells)
        warmups_s = sum(
            measure.instances.min * self.trial_s(cell) for cell in self._plan.cells if done.get(cell, 0) < needed
        )
        starts = measure.instances.min * len(self._timed) + len(self._only_quality)
        left = max(starts - starts_done, 0) / starts if starts else 0.0
        return trials_s + warmups_s + (self._starts_s(measure.instances.min) + self._quality_s()) * left

    def range_s(self) -> tuple[float, float]:
        """The whole study: with the minimum of trials and instances, and with the maximum."""
        measure = self._plan.study.measure
        one_each_s = sum(self.trial_s(cell) for cell in self._plan.cells)
        low, high = (
            self._starts_s(instances) + instances * one_each_s * (trials + 1) + self._quality_s()
            for instances, trials in (
                (measure.instances.min, measure.trials.min),
                (measure.instances.max, measure.trials.max),
            )
        )
        if measure.budget is None:
            return low, high
        least_s = self._starts_s(2) + 2 * 2 * one_each_s + self._quality_s()  # two starts of one round, and warm-ups
        return min(least_s, measure.budget), max(least_s, measure.budget)

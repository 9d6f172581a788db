"""How long a study will take: from what was measured where there is something, else from rough figures."""

from collections import Counter
from collections.abc import Mapping

from bitbench.core.asked.arrival import mean_rate
from bitbench.core.asked.prompts import typical
from bitbench.core.asked.quality import Quality, Scoring
from bitbench.core.asked.workload import Workload
from bitbench.core.cell import Cell, Plan
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


class _Mean:
    """Of what was measured, or a guess before that."""

    def __init__(self, guess: float) -> None:
        self.value = guess
        self._sum = 0.0
        self._count = 0

    def add(self, measured: float) -> None:
        self._sum += measured
        self._count += 1
        self.value = self._sum / self._count


class Estimator:
    """Seconds for starts and trials; measured figures replace guesses as they come in.

    It is asked after every group, of studies with many thousand cells: sums over all of them are kept up to date with
    each record instead of being computed again.
    """

    def __init__(self, plan: Plan, engines: Mapping[str, Engine]) -> None:
        self._plan = plan
        self._engines = engines
        measure = plan.study.measure
        self._needed = measure.instances.min * measure.trials.min
        guesses = _guesses(plan)
        self._trial_s = {cell: _Mean(guesses[cell.contender.variant, cell.workload]) for cell in plan.cells}
        self._start_s = {setup.name: _Mean(engines[setup.engine].start_s) for setup in plan.study.engines}
        timed = {cell.contender for cell in plan.cells}
        self._timed = Counter(contender.engine for contender in timed)
        self._only_quality = Counter(contender.engine for contender in set(plan.quality) - timed)  # started once
        self._quality_s = _all_quality_s(plan, engines)
        self._one_each_s = sum(mean.value for mean in self._trial_s.values())
        self._done: Counter[Cell] = Counter()
        self._left_s = self._one_each_s * self._trials_left(0)
        self._starts_done = 0

    def anew(self) -> "Estimator":
        """One that knows of no record yet."""
        return Estimator(self._plan, self._engines)

    def add(self, record: TrialRecord | InstanceRecord) -> None:
        if isinstance(record, InstanceRecord):
            self._starts_done += 1
            if record.ready_s is not None and record.contender.engine in self._start_s:
                self._start_s[record.contender.engine].add(record.ready_s)
        elif (mean := self._trial_s.get(record.cell)) is not None:
            cell, before_s = record.cell, mean.value
            self._left_s -= before_s * self._trials_left(self._done[cell])
            self._done[cell] += record.kind == "measured"
            if record.duration_s is not None:
                mean.add(record.duration_s)
            self._one_each_s += mean.value - before_s
            self._left_s += mean.value * self._trials_left(self._done[cell])

    def trial_s(self, cell: Cell) -> float:
        return self._trial_s[cell].value

    def start_s(self, setup_name: str) -> float:
        return self._start_s[setup_name].value

    @property
    def one_each_s(self) -> float:
        """One trial of each cell."""
        return self._one_each_s

    def starts_s(self, timed: int) -> float:
        """So many starts of each contender whose speed is measured; others are started once, for their quality."""
        return sum(
            (timed * self._timed[name] + self._only_quality[name]) * mean.value for name, mean in self._start_s.items()
        )

    def remaining_s(self) -> float:
        """Time for the minimum that is left."""
        instances = self._plan.study.measure.instances.min
        starts = instances * self._timed.total() + self._only_quality.total()
        left = max(starts - self._starts_done, 0) / starts if starts else 0.0
        return max(self._left_s, 0.0) + (self.starts_s(instances) + self._quality_s) * left

    def range_s(self) -> tuple[float, float]:
        """The whole study: with the minimum of trials and instances, and with the maximum."""
        measure = self._plan.study.measure
        low, high = (
            self.starts_s(instances) + instances * self._one_each_s * (trials + 1) + self._quality_s
            for instances, trials in (
                (measure.instances.min, measure.trials.min),
                (measure.instances.max, measure.trials.max),
            )
        )
        if measure.budget is None:
            return low, high
        # Two starts of one round, and warm-ups.
        least_s = self.starts_s(2) + 2 * 2 * self._one_each_s + self._quality_s
        return min(least_s, measure.budget), max(least_s, measure.budget)

    def _trials_left(self, done: int) -> int:
        """Of a cell with so many measured trials, warm-ups included."""
        return self._needed - done + self._plan.study.measure.instances.min if done < self._needed else 0


def _guesses(plan: Plan) -> dict[tuple[str, str], float]:
    """By variant and workload: engines are not told apart."""
    return {
        (variant.name, workload.name): guess_trial_s(variant, workload)
        for variant in plan.variants
        for workload in plan.study.workloads
    }


def _all_quality_s(plan: Plan, engines: Mapping[str, Engine]) -> float:
    quality = plan.study.quality
    if quality is None:
        return 0.0
    variants = {variant.name: variant for variant in plan.variants}
    scoring = {setup.name: engines[setup.engine].scoring for setup in plan.study.engines}
    return sum(guess_quality_s(variants[one.variant], quality, scoring[one.engine]) for one in plan.quality)

"""How long a study will take, from what was measured or else from rough figures."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from bitbench.ports import Engine
from bitbench.records.trial import InstanceRecord, TrialRecord
from bitbench.study.hardware import Level
from bitbench.study.model_cost import active_weight_bytes
from bitbench.study.plan import Plan, Point
from bitbench.study.quality import Quality, Scoring
from bitbench.study.study import FEWEST_BLOCKS
from bitbench.study.variant import Variant
from bitbench.study.workload import Workload, mean_arrival_rate, typical_length


@dataclass(frozen=True)
class Assumed:
    """What two cores of a server CPU do, whichever engine computes."""

    read_bytes_per_s: float
    flops_per_s: float


# Fitted to the logarithms of the median trials of the gallery's points (those with a quantized KV cache left out), as
# prompt FLOPs / flops_per_s + answered tokens × (weight bytes / read_bytes_per_s + ASSUMED_TOKEN_OVERHEAD_S). With bf16
# instructions (cpu-shootout and twins, level amx, 22 points): 31 s guessed and 33 s measured for a trial of each, one
# right to a factor of 1.5. Without (the others, level avx512, 63 points, where weights are read as float32): 541 s and
# 479 s, a factor of 1.6; all of cpu-shootout 75 s and 90 s. Engines are not told apart, and llama.cpp is the quickest.
WITH_BF16 = Assumed(read_bytes_per_s=10e9, flops_per_s=0.3e12)
WITHOUT_BF16 = Assumed(read_bytes_per_s=5e9, flops_per_s=0.05e12)
ASSUMED_TOKEN_OVERHEAD_S = 0.010
NULL_TOKEN_S = 0.002
ASSUMED_SCORE_OVERHEAD_S = 0.004  # to sort a vocabulary, and to write and read the likeliest of it
ASSUMED_ANSWERS = 12
ASSUMED_TURN_PROMPT, ASSUMED_TURN_ANSWER = (
    400,
    30,
)  # tokens: the mean of the scripted conversations with SmolLM2


def estimate_assumptions(level: Level | None) -> Assumed:
    """None: not known, or not what computes."""
    return WITH_BF16 if level is None or level.has_bf16 else WITHOUT_BF16


def guess_trial_s(variant: Variant, workload: Workload, speed: Assumed = WITH_BF16) -> float:
    """In a closed loop the engine decides; in an open loop the schedule does, unless the engine cannot keep up."""
    think_s = workload.conversation.think if workload.conversation else 0.0
    rounds = (workload.request_count or 0) / workload.concurrency
    busy_s = rounds * _round_s(variant, workload, workload.concurrency, speed)
    if not workload.open_loop:
        return busy_s + rounds * think_s * (workload.turns - 1) / workload.turns
    last_s = workload.turns * _round_s(variant, workload, 1, speed) + (workload.turns - 1) * think_s
    return max(busy_s, _schedule_s(workload) + last_s)


def _whole_trial_s(record: TrialRecord, workload: Workload) -> float:
    """What it took; of a warm-up, what all of its workload takes at its pace."""
    took_s = record.duration_s or 0.0
    if record.kind == "measured":
        return took_s
    warm_up = workload.warm_up
    more_tokens = typical_length(workload.output_tokens) - typical_length(warm_up.output_tokens)
    times = (workload.request_count or 1) / (warm_up.request_count or 1)
    return times * (took_s + more_tokens * (record.metrics.tpot_s or 0.0))


def guess_quality_s(
    variant: Variant, quality: Quality, scoring: Scoring | None, speed: Assumed = WITH_BF16
) -> float:
    """Windows one after the other, then answers; tasks are not known."""
    if variant.facts.parameters is None:
        return 0.0
    scored = sum(length * count for length, count in quality.window_counts.items())
    step_s = _read_bytes(variant, 1) / speed.read_bytes_per_s + ASSUMED_TOKEN_OVERHEAD_S
    read_token_s = _token_flops(variant) / speed.flops_per_s
    token_s = step_s if scoring is Scoring.NEXT_TOKEN else read_token_s
    read_s = read_token_s * ASSUMED_TURN_PROMPT * _turns(quality)
    return (
        scored * (token_s + ASSUMED_SCORE_OVERHEAD_S)
        + estimate_written_tokens(quality) * step_s
        + read_s
    )


def estimate_written_tokens(quality: Quality) -> int:
    """Of all answers to questions and turns of conversations: at most, where none breaks."""
    answers = ASSUMED_ANSWERS * quality.answer_tokens
    return answers + ASSUMED_TURN_ANSWER * _turns(quality)


def _turns(quality: Quality) -> int:
    return quality.turns.conversations * quality.turns.turns if quality.turns else 0


def _round_s(variant: Variant, workload: Workload, streams: int, speed: Assumed) -> float:
    """One request on each stream: prefill is bound by arithmetic, decode by reading the weights once per step."""
    said, answered, turns = (
        typical_length(workload.input_tokens),
        typical_length(workload.output_tokens),
        workload.turns,
    )
    if variant.facts.parameters is None:
        return answered * NULL_TOKEN_S
    prompt_tokens = (turns + 1) / 2 * said + (
        turns - 1
    ) / 2 * answered  # with the history, over all turns
    prefill_s = _token_flops(variant) * prompt_tokens * streams / speed.flops_per_s
    step_s = _read_bytes(variant, streams) / speed.read_bytes_per_s + ASSUMED_TOKEN_OVERHEAD_S
    return prefill_s + answered * step_s


def _read_bytes(variant: Variant, tokens: int) -> int:
    """Of the weights, in a step of so many tokens; of a variant that is not created yet, 16 bits each."""
    known = variant.weight_bytes or 2 * (variant.facts.parameters or 0)
    return active_weight_bytes(variant.facts, known, tokens) or known


def _token_flops(variant: Variant) -> float:
    active = _read_bytes(variant, 1) / variant.weight_bytes if variant.weight_bytes else 1.0
    return 2 * (variant.facts.parameters or 0) * active


def _schedule_s(workload: Workload) -> float:
    """From the first arrival to the last; not known for the first requests of a trace."""
    if workload.duration is not None:
        return workload.duration
    rate = mean_arrival_rate(workload.arrival)
    return (
        0.0
        if rate is None or workload.requests is None
        else workload.requests / workload.turns / rate
    )


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


class _Starts:
    """Of one setup: a guess, then the mean of the newest block with a start. The first start of an engine in a study
    may take many times as long as those of later blocks, which find its compiled kernels in a cache."""

    def __init__(self, guess: float) -> None:
        self._of_blocks: dict[int, _Mean] = {}
        self._guess = guess

    def add(self, block: int, ready_s: float) -> None:
        self._of_blocks.setdefault(block, _Mean(ready_s)).add(ready_s)

    @property
    def first(self) -> float:
        return self._of_blocks[min(self._of_blocks)].value if self._of_blocks else self._guess

    @property
    def newest(self) -> float:
        return self._of_blocks[max(self._of_blocks)].value if self._of_blocks else self._guess


class Estimator:
    """Seconds for starts and trials; measured figures replace guesses as they come in."""

    def __init__(
        self, plan: Plan, engines: Mapping[str, Engine], level: Level | None = None
    ) -> None:
        """`level`: of the processor that computes."""
        self._measure = plan.study.measure
        self._workloads = {workload.name: workload for workload in plan.study.workloads}
        guesses = _guesses(plan, estimate_assumptions(level))
        of_points = {point: guesses[point.config.variant, point.workload] for point in plan.points}
        self._trial_s = {point: _Mean(trial_s) for point, (trial_s, _) in of_points.items()}
        self._warm_up_s = {point: _Mean(warm_up_s) for point, (_, warm_up_s) in of_points.items()}
        self._start_s = {
            setup.name: _Starts(engines[setup.engine].start_s) for setup in plan.study.engines
        }
        timed = {point.config for point in plan.points}
        self._timed = Counter(config.engine for config in timed)
        self._only_quality = Counter(
            config.engine for config in set(plan.quality) - timed
        )  # started once
        self._quality_s = _all_quality_s(plan, engines, estimate_assumptions(level))
        self._done: Counter[Point] = Counter()
        self._starts_done = 0

    def add(self, record: TrialRecord | InstanceRecord) -> None:
        if isinstance(record, InstanceRecord):
            self._starts_done += 1
            if record.ready_s is not None and record.config.engine in self._start_s:
                self._start_s[record.config.engine].add(record.block, record.ready_s)
        elif record.point in self._trial_s:
            point = record.point
            self._done[point] += record.kind == "measured" and record.turn == 0
            if record.duration_s:  # 0: it never ran
                self._trial_s[point].add(_whole_trial_s(record, self._workloads[point.workload]))
                if record.kind == "warmup":
                    self._warm_up_s[point].add(record.duration_s)

    def trial_s(self, point: Point) -> float:
        return self._trial_s[point].value

    def warm_up_s(self, point: Point) -> float:
        return self._warm_up_s[point].value

    def start_s(self, setup_name: str) -> float:
        """As in the newest block."""
        return self._start_s[setup_name].newest

    def first_start_s(self, setup_name: str) -> float:
        """As in the first block."""
        return self._start_s[setup_name].first

    def starts_s(self, timed: int) -> float:
        """So many starts of each config whose speed is measured; others are started once, for their quality."""
        return sum(
            (timed * self._timed[name] + self._only_quality[name]) * starts.newest
            for name, starts in self._start_s.items()
        )

    def remaining_s(self) -> float:
        """Time for the minimum that is left."""
        blocks = self._measure.starts.min
        left_s = 0.0
        for point in self._trial_s:
            missing = blocks * self._measure.trials.min - self._done[point]
            if missing > 0:
                left_s += missing * self.trial_s(point) + blocks * self.warm_up_s(point)
        starts = blocks * self._timed.total() + self._only_quality.total()
        left = max(starts - self._starts_done, 0) / starts if starts else 0.0
        return left_s + (self.starts_s(blocks) + self._quality_s) * left

    def range_s(self) -> tuple[float, float]:
        """The whole study: with the minimum of trials and instances, and with the maximum."""
        measure = self._measure
        low = self._blocks_s(measure.starts.min, measure.trials.min) + self.quality_s
        if measure.budget is None:
            return low, self._blocks_s(measure.starts.max, measure.trials.max) + self.quality_s
        in_any_case_s = max(self._blocks_s(measure.starts.min, 1), measure.budget)
        return min(
            self._blocks_s(FEWEST_BLOCKS, 1), in_any_case_s
        ) + self.quality_s, in_any_case_s + self.quality_s

    def _blocks_s(self, blocks: int, rounds: int) -> float:
        """So many blocks of so many rounds, with starts and warm-ups."""
        trials_s = sum(mean.value for mean in self._trial_s.values())  # one of each point
        warm_ups_s = sum(mean.value for mean in self._warm_up_s.values())
        return self.starts_s(blocks) - self.starts_s(0) + blocks * (rounds * trials_s + warm_ups_s)

    @property
    def quality_s(self) -> float:
        """Beside a budget, with the starts for quality alone."""
        return self.starts_s(0) + self._quality_s


def _guesses(plan: Plan, speed: Assumed) -> dict[tuple[str, str], tuple[float, float]]:
    """Of a trial and of a warm-up, by variant and workload: engines are not told apart."""
    return {
        (variant.name, workload.name): (
            guess_trial_s(variant, workload, speed),
            guess_trial_s(variant, workload.warm_up, speed),
        )
        for variant in plan.variants
        for workload in plan.study.workloads
    }


def _all_quality_s(plan: Plan, engines: Mapping[str, Engine], speed: Assumed) -> float:
    quality = plan.study.quality
    if quality is None:
        return 0.0
    variants = {variant.name: variant for variant in plan.variants}
    scoring = {setup.name: engines[setup.engine].scoring for setup in plan.study.engines}
    return sum(
        guess_quality_s(variants[config.variant], quality, scoring[config.engine], speed)
        for config in plan.quality
    )

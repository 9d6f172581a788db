"""Estimates of how long a study takes, from measured trials or else from rough assumptions."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from bitbench.ports import Engine
from bitbench.records.trial import InstanceRecord, TrialRecord
from bitbench.study.hardware import Level
from bitbench.study.model_cost import estimate_active_bytes
from bitbench.study.plan import Plan, Point
from bitbench.study.quality import Quality, Scoring
from bitbench.study.study import FEWEST_BLOCKS
from bitbench.study.variant import Variant
from bitbench.study.workload import Workload, find_mean_rate, get_typical_length


@dataclass(frozen=True)
class Assumed:
    """The assumed speed of two cores of a server CPU, for every engine."""

    read_bytes_per_s: float
    flops_per_s: float


# Fitted to the logarithms of the median trials of the gallery's points, without quantized KV
# caches: prompt FLOPs / flops_per_s
#     + answered tokens × (weight bytes / read_bytes_per_s + ASSUMED_TOKEN_OVERHEAD_S).
# With bf16 instructions (cpu-shootout and twins, level amx, 22 points), one trial of each point
# takes 31 s by the guess and 33 s measured. A single guess is right to a factor of 1.5. Without
# them (the other studies, level avx512, 63 points, weights read as float32), the guess is 541 s,
# the measurement 479 s and the factor 1.6. For all of cpu-shootout the guess is 75 s and the
# measurement 90 s. All engines get the same guess, although llama.cpp is the fastest.
WITH_BF16 = Assumed(read_bytes_per_s=10e9, flops_per_s=0.3e12)
WITHOUT_BF16 = Assumed(read_bytes_per_s=5e9, flops_per_s=0.05e12)
ASSUMED_TOKEN_OVERHEAD_S = 0.010
NULL_TOKEN_S = 0.002
ASSUMED_SCORE_OVERHEAD_S = 0.004  # to sort a vocabulary, and to write and read its top tokens
ASSUMED_ANSWERS = 12
# Tokens per turn: the means of the scripted conversations with SmolLM2.
ASSUMED_TURN_PROMPT = 400
ASSUMED_TURN_ANSWER = 30


def estimate_assumptions(level: Level | None) -> Assumed:
    """Return the assumed speed at a processor's instruction level. None means that the level is
    unknown, or that a GPU computes."""
    return WITH_BF16 if level is None or level.has_bf16 else WITHOUT_BF16


def guess_trial_s(variant: Variant, workload: Workload, speed: Assumed = WITH_BF16) -> float:
    """Return the guessed seconds of a trial. In a closed loop the engine decides. In an open loop
    the schedule decides, unless the engine cannot keep up."""
    turns = workload.turns
    think_s = workload.conversation.think if workload.conversation else 0.0
    rounds = (workload.request_count or 0) / workload.concurrency
    busy_s = rounds * _estimate_round_s(variant, workload, workload.concurrency, speed)
    if not workload.open_loop:
        return busy_s + rounds * think_s * (turns - 1) / turns
    last_s = turns * _estimate_round_s(variant, workload, 1, speed) + (turns - 1) * think_s
    return max(busy_s, _estimate_schedule_s(workload) + last_s)


def _estimate_whole_trial_s(record: TrialRecord, workload: Workload) -> float:
    """Return a trial's measured seconds. For a warm-up, return what the whole workload would take
    at the same pace."""
    duration_s = record.duration_s or 0.0
    if record.kind == "measured":
        return duration_s
    warm_up = workload.warm_up
    more_tokens = get_typical_length(workload.output_tokens) - get_typical_length(
        warm_up.output_tokens
    )
    times = (workload.request_count or 1) / (warm_up.request_count or 1)
    return times * (duration_s + more_tokens * (record.metrics.tpot_s or 0.0))


def guess_quality_s(
    variant: Variant, quality: Quality, scoring: Scoring | None, speed: Assumed = WITH_BF16
) -> float:
    """Return the guessed seconds of a quality measurement: windows one after the other, then
    answers. Tasks are unknown and do not count."""
    if variant.facts.parameters is None:
        return 0.0
    scored_tokens = sum(length * count for length, count in quality.window_counts.items())
    step_s = _read_bytes(variant, 1) / speed.read_bytes_per_s + ASSUMED_TOKEN_OVERHEAD_S
    read_token_s = _estimate_token_flops(variant) / speed.flops_per_s
    token_s = step_s if scoring is Scoring.NEXT_TOKEN else read_token_s
    score_s = scored_tokens * (token_s + ASSUMED_SCORE_OVERHEAD_S)
    write_s = estimate_written_tokens(quality) * step_s
    read_s = read_token_s * ASSUMED_TURN_PROMPT * _count_turns(quality)
    return score_s + write_s + read_s


def estimate_written_tokens(quality: Quality) -> int:
    """Return the maximum number of tokens in all answers to questions and turns of
    conversations."""
    answers = ASSUMED_ANSWERS * quality.answer_tokens
    return answers + ASSUMED_TURN_ANSWER * _count_turns(quality)


def _count_turns(quality: Quality) -> int:
    return quality.turns.conversations * quality.turns.turns if quality.turns else 0


def _estimate_round_s(variant: Variant, workload: Workload, streams: int, speed: Assumed) -> float:
    """Return the seconds of one request on each stream. Arithmetic limits prefill, and reading the
    weights once per step limits decode."""
    input_tokens = get_typical_length(workload.input_tokens)
    output_tokens = get_typical_length(workload.output_tokens)
    turns = workload.turns
    if variant.facts.parameters is None:
        return output_tokens * NULL_TOKEN_S
    # The mean over all turns, with the history that each turn sends again.
    prompt_tokens = (turns + 1) / 2 * input_tokens + (turns - 1) / 2 * output_tokens
    prefill_s = _estimate_token_flops(variant) * prompt_tokens * streams / speed.flops_per_s
    step_s = _read_bytes(variant, streams) / speed.read_bytes_per_s + ASSUMED_TOKEN_OVERHEAD_S
    return prefill_s + output_tokens * step_s


def _read_bytes(variant: Variant, tokens: int) -> int:
    """Return the bytes of weights that a step of this many tokens reads. A variant that is not
    created yet is assumed to have 16 bits per weight."""
    weight_bytes = variant.weight_bytes or 2 * (variant.facts.parameters or 0)
    return estimate_active_bytes(variant.facts, weight_bytes, tokens) or weight_bytes


def _estimate_token_flops(variant: Variant) -> float:
    """Return the FLOPs for one token: two per active parameter."""
    active_share = 1.0
    if variant.weight_bytes:
        active_share = _read_bytes(variant, 1) / variant.weight_bytes
    return 2 * (variant.facts.parameters or 0) * active_share


def _estimate_schedule_s(workload: Workload) -> float:
    """Return the seconds from the first arrival to the last, or 0 if they are unknown, as for the
    first requests of a trace."""
    if workload.duration is not None:
        return workload.duration
    rate = find_mean_rate(workload.arrival)
    if rate is None or workload.requests is None:
        return 0.0
    return workload.requests / workload.turns / rate


class _Mean:
    """The mean of measured values, or a guess before the first one."""

    def __init__(self, guess: float) -> None:
        self.value = guess
        self._sum = 0.0
        self._count = 0

    def add(self, measured: float) -> None:
        self._sum += measured
        self._count += 1
        self.value = self._sum / self._count


class _Starts:
    """The start times of one setup: a guess, then the mean of each block. An engine's first start
    in a study may take many times as long as later ones, which reuse its cached compiled
    kernels."""

    def __init__(self, guess: float) -> None:
        self._means: dict[int, _Mean] = {}  # by block
        self._guess = guess

    def add(self, block: int, ready_s: float) -> None:
        self._means.setdefault(block, _Mean(ready_s)).add(ready_s)

    @property
    def first(self) -> float:
        return self._means[min(self._means)].value if self._means else self._guess

    @property
    def newest(self) -> float:
        return self._means[max(self._means)].value if self._means else self._guess


class Estimator:
    """An estimator of the seconds for starts and trials. Measured times replace guesses."""

    def __init__(
        self, plan: Plan, engines: Mapping[str, Engine], level: Level | None = None
    ) -> None:
        """Start with guesses. `level` is the instruction level of the processor that computes."""
        speed = estimate_assumptions(level)
        variants = {variant.name: variant for variant in plan.variants}
        self._measure = plan.study.measure
        self._workloads = {workload.name: workload for workload in plan.study.workloads}
        self._trial_s: dict[Point, _Mean] = {}
        self._warm_up_s: dict[Point, _Mean] = {}
        for point in plan.points:
            variant = variants[point.config.variant]
            workload = self._workloads[point.workload]
            self._trial_s[point] = _Mean(guess_trial_s(variant, workload, speed))
            self._warm_up_s[point] = _Mean(guess_trial_s(variant, workload.warm_up, speed))
        self._start_s: dict[str, _Starts] = {}
        for setup in plan.study.engines:
            self._start_s[setup.name] = _Starts(engines[setup.engine].start_s)
        timed = {point.config for point in plan.points}
        self._timed = Counter(config.engine for config in timed)
        # Configs without speed trials are started once.
        self._only_quality = Counter(config.engine for config in set(plan.quality) - timed)
        self._quality_s = _guess_all_quality_s(plan, engines, speed)
        self._done: Counter[Point] = Counter()
        self._starts_done = 0

    def add(self, record: TrialRecord | InstanceRecord) -> None:
        """Take the times of a new record into account."""
        if isinstance(record, InstanceRecord):
            self._starts_done += 1
            if record.ready_s is not None and record.config.engine in self._start_s:
                self._start_s[record.config.engine].add(record.block, record.ready_s)
        elif record.point in self._trial_s:
            point = record.point
            self._done[point] += record.kind == "measured" and record.turn == 0
            if record.duration_s:  # 0: it never ran
                self._trial_s[point].add(
                    _estimate_whole_trial_s(record, self._workloads[point.workload])
                )
                if record.kind == "warmup":
                    self._warm_up_s[point].add(record.duration_s)

    def trial_s(self, point: Point) -> float:
        """Return the expected seconds of a trial: the mean of measured trials, or else a guess."""
        return self._trial_s[point].value

    def estimate_warm_up_s(self, point: Point) -> float:
        """Return the expected seconds of a warm-up: the mean of measured ones, or else a guess."""
        return self._warm_up_s[point].value

    def start_s(self, setup_name: str) -> float:
        """Return the seconds of a start in the newest block."""
        return self._start_s[setup_name].newest

    def estimate_first_start_s(self, setup_name: str) -> float:
        """Return the seconds of a start in the first block."""
        return self._start_s[setup_name].first

    def starts_s(self, timed: int) -> float:
        """Return the seconds of `timed` starts of each config with speed trials, and one start of
        each config without them, which only has its quality measured."""
        seconds = 0.0
        for name, starts in self._start_s.items():
            count = timed * self._timed[name] + self._only_quality[name]
            seconds += count * starts.newest
        return seconds

    def remaining_s(self) -> float:
        """Return the seconds until the study has its minimum of starts, trials and quality."""
        blocks = self._measure.starts.min
        trials_s = 0.0
        for point in self._trial_s:
            missing = blocks * self._measure.trials.min - self._done[point]
            if missing > 0:
                trials_s += missing * self.trial_s(point) + blocks * self.estimate_warm_up_s(point)
        starts = blocks * self._timed.total() + self._only_quality.total()
        share_left = max(starts - self._starts_done, 0) / starts if starts else 0.0
        return trials_s + (self.starts_s(blocks) + self._quality_s) * share_left

    def estimate_range_s(self) -> tuple[float, float]:
        """Return the seconds of the whole study with the minimum of starts and trials, and with the
        maximum."""
        measure = self._measure
        low_s = self._estimate_blocks_s(measure.starts.min, measure.trials.min)
        high_s = self._estimate_blocks_s(measure.starts.max, measure.trials.max)
        if measure.budget is not None:
            # A budget is overrun if the minimum of starts does not fit.
            high_s = max(self._estimate_blocks_s(measure.starts.min, 1), measure.budget)
            low_s = min(self._estimate_blocks_s(FEWEST_BLOCKS, 1), high_s)
        return low_s + self.quality_s, high_s + self.quality_s

    def _estimate_blocks_s(self, blocks: int, rounds: int) -> float:
        """Return the seconds of this many blocks and rounds in each, with starts and warm-ups."""
        trials_s = sum(mean.value for mean in self._trial_s.values())  # one trial of each point
        warm_ups_s = sum(mean.value for mean in self._warm_up_s.values())
        return self.starts_s(blocks) - self.starts_s(0) + blocks * (rounds * trials_s + warm_ups_s)

    @property
    def quality_s(self) -> float:
        """The seconds of all quality measurements, and of the starts of configs without speed
        trials. A budget does not include them."""
        return self.starts_s(0) + self._quality_s


def _guess_all_quality_s(plan: Plan, engines: Mapping[str, Engine], speed: Assumed) -> float:
    quality = plan.study.quality
    if quality is None:
        return 0.0
    variants = {variant.name: variant for variant in plan.variants}
    scoring = {setup.name: engines[setup.engine].scoring for setup in plan.study.engines}
    return sum(
        guess_quality_s(variants[config.variant], quality, scoring[config.engine], speed)
        for config in plan.quality
    )

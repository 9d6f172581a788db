"""Outcomes, trials and instances as they are written to disk, the effect of a lost machine on
them, and the progress of a running trial.

One machine runs a block, so that machine effects cancel in ratios. If the machine is lost, the
whole block is repeated, and its earlier trials do not count, because they belong to another
machine. No record is rewritten for that. It follows from the instance with the outcome `lost`,
which comes after the instances that no longer count.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Literal

from pydantic import Field

from bitbench.study.base import Record
from bitbench.study.plan import Config, Point

RECORD_FORMAT = 1
# History of RECORD_FORMAT, the version in each line of trials.jsonl and instances.jsonl:
#   1  first published form


class Outcome(StrEnum):
    """The outcome of a trial, an instance or a measurement."""

    OK = "ok"
    OOM = "oom"  # needed more memory than there is, or than the study allows
    UNSUPPORTED = "unsupported"  # the engine cannot run this, as it says itself
    TIMEOUT = "timeout"  # not ready, or no answer, within the limit
    CRASHED = "crashed"  # the process ended, or the connection broke
    OVERLOADED = "overloaded"  # the server refused requests because it has too many
    # our own client was too late, so results would show the client, not the engine
    CLIENT_BOUND = "client_bound"
    # the machine or a user interfered: killed from outside, disk full, clock set
    DISTURBED = "disturbed"
    LOST = "lost"  # its machine went away, or its block was repeated on another one
    INVALID = "invalid"  # an answer that does not fit the request, such as a wrong token count


# Outcomes that say nothing about the engine. Such a trial does not count and is repeated.
NOT_THE_ENGINES = frozenset({Outcome.CLIENT_BOUND, Outcome.DISTURBED, Outcome.LOST})


class Failure(Record):
    """An outcome other than ok, with its cause in one sentence and the log lines that show it."""

    outcome: Outcome
    cause: str
    log_lines: tuple[str, ...] = ()


class ObjectiveResult(Record):
    """The comparison of a trial with the study's objectives. See `analysis.objectives`."""

    holds: bool | None  # None if a promised time is unknown
    why_not: str | None = None
    # time beyond the limit, or growth over the whole trial
    excess_s: float | None = None
    # seconds of latency per second of the trial, or None for too few requests
    growth: float | None = None


class TrialMetrics(Record):
    """The metrics of one trial, defined in `analysis.trial`. None if a metric is undefined."""

    latency_s: float | None = None
    ttft_s: float | None = None
    ttft_p50_s: float | None = None
    ttft_p99_s: float | None = None
    first_answer_s: float | None = None
    tpot_s: float | None = None
    tpot_p99_s: float | None = None
    itl_p99_s: float | None = None
    output_throughput: float | None = None
    input_throughput: float | None = None
    overall_throughput: float | None = None
    request_throughput: float | None = None
    offered_rate: float | None = None
    achieved_rate: float | None = None
    goodput: float | None = None
    energy_per_token: float | None = None


class WorkerHealth(Record):
    """The health of one client process: how well it kept up."""

    send_lateness_p99_s: float
    # Mean delay after a request could be sent. Waiting for a free stream is not late.
    send_lateness_mean_s: float | None = None
    # Time from the arrival of data until the client noticed it.
    loop_lag_p99_s: float
    loop_lag_mean_s: float | None = None
    cpu_share: float  # of one core, while the trial ran
    clock_step_s: float = 0.0  # change of the wall clock meanwhile, positive if set forward
    # share of the machine's processors that a hypervisor gave to other machines meanwhile
    stolen_share: float = 0.0
    # True if tokens have the time at which the kernel received them. Then noticing them late does
    # not lengthen their times.
    kernel_times: bool = False


class LoadMachine(Record):
    """A machine that sent a part of a trial's requests."""

    name: str
    requests: int
    off_by_s: float  # largest possible deviation from planned sends, because of its clock


class ClientHealth(WorkerHealth):
    """The health of our own client, with the values of its worst process.

    Beyond the thresholds in `loadgen.verdict` a trial is client_bound.
    """

    workers: tuple[WorkerHealth, ...] = ()
    nodes: tuple[LoadMachine, ...] = ()  # empty if all workers were on one machine


class Memory(Record):
    """The memory of an instance's process tree on the host and on its devices."""

    resident_bytes: int | None = None  # proportional set size, at the end of the trial
    peak_bytes: int | None = None  # sum of each process's own high-water mark: an upper bound
    device_bytes: int | None = None  # on all devices together, at the end of the trial
    device_peak_bytes: int | None = None  # the largest value seen since the instance started


class EngineMetrics(Record):
    """The counters of the engine during a trial. None if the engine does not count it."""

    queue_s: float | None = None  # mean time of a request in the queue
    waiting: float | None = None  # requests that were still in its queue when the trial had ended
    # requests that were set aside and computed again because the KV cache was full
    preemptions: float | None = None
    prompt_tokens: float | None = None
    cached_tokens: float | None = None  # prompt tokens from a prefix cache
    kv_use: float | None = None  # share of the KV cache that was taken when the trial had ended
    drafts: float | None = None  # how often speculative decoding proposed tokens
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    # By the engine's own names: the growth of a counter, the last value of a gauge.
    raw: dict[str, float] = Field(default_factory=dict)


class GpuUse(Record):
    """The activity of an engine's GPUs during a trial. None if the driver does not report it."""

    energy_j: float | None = None  # of all together
    sm_clock_low_mhz: int | None = None  # the lowest that was seen
    sm_clock_high_mhz: int | None = None
    memory_clock_mhz: int | None = None  # the lowest that was seen
    temperature_c: int | None = None  # the highest that was seen
    # why clocks were lower than they could be: "power cap"
    slowed_by: tuple[str, ...] | None = None
    other_processes: int | None = None  # the most that computed there next to the engine


class TrialRecord(Record):
    """One repetition of a point in one instance."""

    format: int = RECORD_FORMAT
    id: str
    kind: Literal["warmup", "measured"] = "measured"
    point: Point
    block: int
    index: int  # within its block, counted over all instances that worked on that block
    # Trials of a round ran in turn with their engines resident. None: one config after the other.
    round: int | None = None
    residents: int = 0  # other instances that were in memory meanwhile
    # Position in its turn: 0 ran right after a thaw, 1 directly after that trial. One trial of a
    # turn counts: the first, or the second if `analysis.turns.settle_turns` decides so.
    turn: int = 0
    instance_id: str
    # Wall clock, ISO 8601 in UTC: the anchor of this trial's monotonic times. None if the imported
    # file lacks it.
    started_at: str | None
    duration_s: float | None
    outcome: Outcome
    cause: str | None = None
    log_lines: tuple[str, ...] = ()
    # also of a rejected trial, whose requests were all answered
    metrics: TrialMetrics = TrialMetrics()
    # Times that a late client may have changed too much (`Metric.moves_with`), although the trial
    # counts: ttft, itl.
    uncertain: tuple[str, ...] = ()
    client: ClientHealth | None = None
    memory: Memory = Memory()
    gpus: GpuUse | None = None  # None if the engine sees no GPU, or is not on this machine
    engine_metrics: EngineMetrics | None = None  # None if the engine reports none
    # Share of prompt tokens from a prefix cache, by the engine's counter or the answers' usage.
    cached_share: float | None = None
    objectives: ObjectiveResult | None = None  # None if the study has none
    requests: int = 0
    failed_requests: int = 0
    requests_file: str | None = None
    more_request_files: tuple[str, ...] = ()  # if several load processes sent the requests
    is_sketched: bool = False  # True if percentiles are only within 1 %, because of many times

    @property
    def energy_j(self) -> float | None:
        if self.gpus is None:
            return None
        return self.gpus.energy_j

    @property
    def counts(self) -> bool:
        """Return True if the trial counts in metrics."""
        return self.kind == "measured" and self.outcome is Outcome.OK and self.turn == 0

    @property
    def is_rejected(self) -> bool:
        """Return True if requests were answered but the client or the machine spoiled the times."""
        if self.outcome not in (Outcome.CLIENT_BOUND, Outcome.DISTURBED):
            return False
        return self.metrics != TrialMetrics()


class KernelPath(StrEnum):
    """A way from the stored weights to a product."""

    QUANTIZED = "quantized"  # multiplies low-bit weights with low-bit activations
    WEIGHT_ONLY = "weight_only"  # reads low-bit weights and expands them inside the product
    # expands them to dense weights at load or before a product, so it reads as much as dense
    DEQUANTIZED = "dequantized"
    DENSE = "dense"  # the weights are not quantized


class KernelChoice(Record):
    """The kernel that a kind of layers really runs on."""

    kind: str  # the layers: "CompressedTensorsW8A8Int8", "linear", "attention"
    kernel: str  # "CPUInt8ScaledMMLinearKernel", "dense bfloat16"
    layers: int | None = None  # their number, or None if the engine does not report it
    path: KernelPath | None = None  # None if it is unknown or does not apply
    source: Literal["log", "modules"]  # read from the engine's log or from its modules

    @property
    def shown(self) -> str:
        """Return `CompressedTensorsW8A8Int8 (24): CPUInt8ScaledMMLinearKernel`.

        The number of layers is left out if it is unknown.
        """
        if self.layers is None:
            return f"{self.kind}: {self.kernel}"
        return f"{self.kind} ({self.layers}): {self.kernel}"


class InstanceFacts(Record):
    """The facts that an engine reports about itself once it is ready."""

    engine_version: str | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    command: tuple[str, ...] = ()  # without secrets
    kernels: tuple[str, ...] = ()  # the selected kernels, in the engine's own words
    # the same per kind of layers, empty if it is unknown
    kernel_choices: tuple[KernelChoice, ...] = ()
    weight_bytes_loaded: int | None = None  # in memory, over all devices
    kv_cache_bytes: int | None = None  # reserved, or None if it grows with the requests
    kv_cache_tokens: int | None = None  # KV capacity: the most tokens that fit at once
    kv_bytes_per_token: int | None = None
    weight_load_s: float | None = None
    compile_s: float | None = None
    prefix_caching: bool | None = None
    # bitbench did not start it: its trials say nothing about another start
    was_running: bool = False
    notes: tuple[str, ...] = ()
    # warnings of the engine about its own speed, in its words: an untuned or slower kernel
    warnings: tuple[str, ...] = ()


class InstanceRecord(Record):
    """One start of an engine with one variant."""

    format: int = RECORD_FORMAT
    id: str
    config: Config
    block: int
    # its machine by its name in `hosts` of the lock. None: imported, or a running server
    host: str | None = None
    started_at: str | None
    ready_s: float | None = None  # from start to ready. None: never ready, or imported
    outcome: Outcome
    cause: str | None = None
    log_lines: tuple[str, ...] = ()
    facts: InstanceFacts = InstanceFacts()
    memory: Memory = Memory()  # once ready, before the first request
    log_file: str | None


REPEATED = "Its machine was lost later in this block, which was repeated as a whole."


def mark_lost_trial_outcomes(
    trials: Sequence[TrialRecord], instances: Iterable[InstanceRecord]
) -> list[TrialRecord]:
    """Return the trials, with the outcome `lost` if a lost machine took them back."""
    gone: set[str] = set()
    by_block: dict[int, list[str]] = {}
    for instance in instances:
        earlier = by_block.setdefault(instance.block, [])
        if instance.outcome is Outcome.LOST:
            gone.update(earlier)
        earlier.append(instance.id)
    taken_back = {"outcome": Outcome.LOST, "cause": REPEATED}
    result = []
    for trial in trials:
        if trial.outcome is Outcome.OK and trial.instance_id in gone:
            result.append(trial.model_copy(update=taken_back))
        else:
            result.append(trial)
    return result


class LoadProgress(Record):
    """The progress of a running trial: sums over the client's processes since the trial's start."""

    elapsed_s: float
    requests: int  # requests of the whole trial
    running: int
    succeeded: int  # as far as it is clear before answers are decoded
    failed: int
    chunks: int  # parts of answers that arrived in separate reads, most of them one token
    chunks_per_s: float  # since the last message
    requests_per_s: float  # that ended, since the last message

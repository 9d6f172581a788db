"""What happened: outcomes, trials and instances as they are written to disk, what a lost machine takes back of them,
and how a trial goes while it runs.

A block is run by one machine, so that what is special about the machine cancels in ratios. Where a machine was lost,
the block is repeated as a whole, and what it had before does not count: it would be of another machine. Nothing is
rewritten for that; it follows from the instance with the outcome `lost`, which comes after those that it takes back.
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
    OK = "ok"
    OOM = "oom"  # needed more memory than there is, or than the study allows
    UNSUPPORTED = "unsupported"  # the engine says it cannot run this
    TIMEOUT = "timeout"  # not ready, or no answer, within the limit
    CRASHED = "crashed"  # the process ended, or the connection broke
    OVERLOADED = "overloaded"  # the server refused requests because it has too many
    CLIENT_BOUND = (
        "client_bound"  # our own client was too late: the figures would be ours, not the engine's
    )
    # The machine, or somebody on it, interfered: killed from outside, no disk, the clock was set.
    DISTURBED = "disturbed"
    LOST = "lost"  # its machine went away, or its block was repeated on another one
    INVALID = "invalid"  # an answer that is not what was asked for, such as a wrong token count


# They say nothing about the engine: such a trial does not count, and is repeated.
NOT_THE_ENGINES = frozenset({Outcome.CLIENT_BOUND, Outcome.DISTURBED, Outcome.LOST})


class Failure(Record):
    """An outcome other than ok: its cause in one sentence and the log lines that show it."""

    outcome: Outcome
    cause: str
    log_lines: tuple[str, ...] = ()


class ObjectiveResult(Record):
    """Whether a trial held the objectives of its study; see `analysis.objectives`."""

    holds: bool | None  # None: a time that was promised is unknown
    why_not: str | None = None
    excess_s: float | None = (
        None  # by how much it missed: beyond the limit, or growth over the whole trial
    )
    growth: float | None = (
        None  # seconds of latency per second of the trial; None: too few requests to tell
    )


class TrialMetrics(Record):
    """One trial in numbers; definitions in `analysis.trial`. None where a figure is not defined."""

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
    """How well one process of our client kept up."""

    send_lateness_p99_s: float
    # Sent after it could be sent, on average: what waits for its stream to be free is not late.
    send_lateness_mean_s: float | None = None
    # How long what had arrived waited to be noticed.
    loop_lag_p99_s: float
    loop_lag_mean_s: float | None = None
    cpu_share: float  # of one core, while the trial ran
    clock_step_s: float = 0.0  # by how much the wall clock was set meanwhile; forward is positive
    stolen_share: float = (
        0.0  # of its machine's processors, that a hypervisor gave to other machines meanwhile
    )
    # Tokens have the time at which the kernel received them, so that noticing them late does not lengthen their times.
    kernel_times: bool = False


class LoadMachine(Record):
    """One of several machines that sent the requests of a trial, each its own part."""

    name: str
    requests: int
    off_by_s: float  # at most: how much earlier or later than planned it sent, because of its clock


class ClientHealth(WorkerHealth):
    """How well our own client kept up; past the thresholds in `loadgen.verdict` a trial is client_bound.

    Each figure is that of the worst of the client's processes.
    """

    workers: tuple[WorkerHealth, ...] = ()
    nodes: tuple[LoadMachine, ...] = ()  # empty: all workers were on one machine, and had one clock


class Memory(Record):
    """Memory of an instance's whole process tree: the host's, and that of its devices where there are any."""

    resident_bytes: int | None = None  # proportional set size, at the end of the trial
    peak_bytes: int | None = None  # sum of each process's own high-water mark: an upper bound
    device_bytes: int | None = None  # on all devices together, at the end of the trial
    device_peak_bytes: int | None = None  # the most that was seen since the instance started


class EngineMetrics(Record):
    """What the engine itself counted during a trial; None where it does not count that."""

    queue_s: float | None = None  # of a request, on average: from its arrival until it was taken up
    waiting: float | None = None  # requests that were still in its queue when the trial had ended
    preemptions: float | None = (
        None  # requests that were set aside, and computed again, for lack of KV cache
    )
    prompt_tokens: float | None = None
    cached_tokens: float | None = None  # of prompts, that came out of a prefix cache
    kv_use: float | None = None  # share of the KV cache that was taken when the trial had ended
    drafts: float | None = None  # of speculative decoding: how often tokens were proposed
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    # The same by the engine's own names: how much a counter grew, what a gauge showed in the end.
    raw: dict[str, float] = Field(default_factory=dict)


class GpuUse(Record):
    """What the GPUs that an engine sees did during a trial. None where the driver does not tell."""

    energy_j: float | None = None  # of all together
    sm_clock_low_mhz: int | None = None  # the lowest that was seen
    sm_clock_high_mhz: int | None = None
    memory_clock_mhz: int | None = None  # the lowest that was seen
    temperature_c: int | None = None  # the highest that was seen
    slowed_by: tuple[str, ...] | None = (
        None  # why clocks were lower than they could be: "power cap"
    )
    other_processes: int | None = None  # the most that computed there beside the engine


class TrialRecord(Record):
    """One repetition of a point in one instance."""

    format: int = RECORD_FORMAT
    id: str
    kind: Literal["warmup", "measured"] = "measured"
    point: Point
    block: int
    index: int  # within its block, counted over all instances that worked on that block
    # Trials of one round of a block were run in turn, with their engines resident; None: one visit after the other.
    round: int | None = None
    residents: int = 0  # other instances that lay in memory meanwhile
    # Its place in its turn: 0 was run right after a thaw, 1 directly after that one. One trial of a turn counts: the
    # first, or the second where `analysis.turns.settle_turns` says so.
    turn: int = 0
    instance_id: str
    # Wall clock, ISO 8601 in UTC: the anchor of this trial's monotonic times. None: the file it came from does not say.
    started_at: str | None
    duration_s: float | None
    outcome: Outcome
    cause: str | None = None
    log_lines: tuple[str, ...] = ()
    metrics: TrialMetrics = (
        TrialMetrics()
    )  # also of a rejected trial, whose requests were all answered
    # What the client's lateness may have moved too far (`Metric.moves_with`), although the trial counts: ttft, itl.
    uncertain: tuple[str, ...] = ()
    client: ClientHealth | None = None
    memory: Memory = Memory()
    gpus: GpuUse | None = None  # None: the engine sees none, or is not on this machine
    engine_metrics: EngineMetrics | None = None  # None where the engine offers none
    # Of its prompt tokens, what came from a prefix cache: by the engine's own counter, else by the answers' usage.
    cached_share: float | None = None
    objectives: ObjectiveResult | None = None  # None where the study has none
    requests: int = 0
    failed_requests: int = 0
    requests_file: str | None = None
    more_request_files: tuple[str, ...] = ()  # where several load processes sent the requests
    is_sketched: bool = False  # times were too many for exact percentiles: these are within 1 %

    @property
    def energy_j(self) -> float | None:
        return self.gpus.energy_j if self.gpus is not None else None

    @property
    def counts(self) -> bool:
        """Whether it enters a figure."""
        return self.kind == "measured" and self.outcome is Outcome.OK and self.turn == 0

    @property
    def is_rejected(self) -> bool:
        """Whether its requests were answered and the client or the machine spoiled their times."""
        return (
            self.outcome in (Outcome.CLIENT_BOUND, Outcome.DISTURBED)
            and self.metrics != TrialMetrics()
        )


class KernelPath(StrEnum):
    """How a kernel gets from the stored weights to a product."""

    QUANTIZED = "quantized"  # multiplies low-bit weights with low-bit activations
    WEIGHT_ONLY = "weight_only"  # reads low-bit weights and expands them inside the product
    DEQUANTIZED = "dequantized"  # expands them to dense ones, at load or before a product: the traffic of dense
    DENSE = "dense"  # the weights are not quantized


class KernelChoice(Record):
    """Which kernel a kind of layers really runs on."""

    kind: str  # the layers: "CompressedTensorsW8A8Int8", "linear", "attention"
    kernel: str  # "CPUInt8ScaledMMLinearKernel", "dense bfloat16"
    layers: int | None = None  # how many; None where the engine does not say
    path: KernelPath | None = None  # None where it is not known, or does not apply
    source: Literal[
        "log", "modules"
    ]  # where it was read: what the engine said, or what its modules are

    @property
    def shown(self) -> str:
        """`CompressedTensorsW8A8Int8: CPUInt8ScaledMMLinearKernel`, with the number of layers where it is known."""
        return f"{self.kind}{f' ({self.layers})' if self.layers is not None else ''}: {self.kernel}"


class InstanceFacts(Record):
    """What an engine says about itself once it is up."""

    engine_version: str | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    command: tuple[str, ...] = ()  # without secrets
    kernels: tuple[str, ...] = ()  # what was really selected, in the engine's own words
    kernel_choices: tuple[
        KernelChoice, ...
    ] = ()  # the same, per kind of layers; empty where it cannot be told
    weight_bytes_loaded: int | None = None  # as they lie in memory, over all devices
    kv_cache_bytes: int | None = None  # set aside; None where it grows with the requests
    kv_cache_tokens: int | None = None  # of all requests together: the most that fit at once
    kv_bytes_per_token: int | None = None
    weight_load_s: float | None = None
    compile_s: float | None = None
    prefix_caching: bool | None = None
    was_running: bool = (
        False  # bitbench did not start it: its trials say nothing about another start
    )
    notes: tuple[str, ...] = ()
    warnings: tuple[
        str, ...
    ] = ()  # of the engine, about its own speed, in its words: an untuned or slower kernel


class InstanceRecord(Record):
    """One start of an engine with one variant."""

    format: int = RECORD_FORMAT
    id: str
    config: Config
    block: int
    host: str | None = (
        None  # its machine, as `hosts` of the lock names it; None: imported, or a running server
    )
    started_at: str | None
    ready_s: float | None = None  # from start to ready; None where it never was, or was imported
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
    """The trials, with the outcome `lost` where they were taken back."""
    instances = list(instances)
    last_lost = {
        instance.block: place
        for place, instance in enumerate(instances)
        if instance.outcome is Outcome.LOST
    }
    if not last_lost:
        return list(trials)
    gone = {
        instance.id
        for place, instance in enumerate(instances)
        if place < last_lost.get(instance.block, -1)
    }
    taken_back = {"outcome": Outcome.LOST, "cause": REPEATED}
    return [
        trial.model_copy(update=taken_back)
        if trial.outcome is Outcome.OK and trial.instance_id in gone
        else trial
        for trial in trials
    ]


class LoadProgress(Record):
    """Sums over the client's processes, from the trial's start unless said otherwise."""

    elapsed_s: float
    requests: int  # of the trial, where all are sent
    running: int
    succeeded: int  # as far as is known before answers are decoded
    failed: int
    chunks: int  # parts of answers that came in a read of their own; most carry one token
    chunks_per_s: float  # since the last message
    requests_per_s: float  # that ended, since the last message

"""The protocols between stages, over domain types: what one stage needs from another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from bitbench.records.quality import QualityRecord
from bitbench.records.trial import (
    ClientHealth,
    Failure,
    InstanceFacts,
    InstanceRecord,
    LoadProgress,
    TrialRecord,
)
from bitbench.study.base import Json
from bitbench.study.environment import Environment
from bitbench.study.hardware import Capability
from bitbench.study.objective import Objective
from bitbench.study.plan import Config, Group, Plan, Point
from bitbench.study.quality import Scoring
from bitbench.study.study import Argument, EngineSetup
from bitbench.study.variant import Variant
from bitbench.study.workload import Workload
from bitbench.util.errors import EngineEnvironmentError, ModelError

if TYPE_CHECKING:
    import pyarrow as pa

    from bitbench.records.request_rows import RequestParts
    from bitbench.records.request_sums import RequestSums


NO_ARGUMENTS: Mapping[str, Argument] = MappingProxyType({})
NO_KV_CACHE_TYPES: Mapping[str, Mapping[str, Argument]] = MappingProxyType({})


class Load(NamedTuple):
    """The requests of a workload that are in flight at once."""

    requests: int
    tokens: int  # of the longest request, with its output


@dataclass(frozen=True)
class Launch:
    """Everything an engine needs to start one instance."""

    setup: EngineSetup
    variant: Variant
    python: Path | None  # interpreter of the engine's environment, None for an engine without one
    log_file: Path
    loads: tuple[Load, ...]  # one after the other
    seed: int
    dtype: str | None = None  # type to compute in, None for the setup's or the adapter's default
    top_tokens: int = 0  # most log-probabilities per position of a prompt
    trace_folder: Path | None = None  # for operator traces, None without a profile
    capability: Capability | None = None  # lowest among the visible GPUs, None if unknown

    @property
    def context_tokens(self) -> int:
        """The tokens of the longest request that will come."""
        return max(load.tokens for load in self.loads)

    @property
    def concurrency(self) -> int:
        """The largest number of requests that will be in flight."""
        return max(load.requests for load in self.loads)

    def context_with(self, margin: int) -> int:
        """Return `context_tokens` plus a margin, but at most the context of the model."""
        tokens = self.context_tokens + margin
        return min(tokens, self.variant.facts.context_tokens or tokens)

    def cached_tokens(self, page: int, margin: int) -> int:
        """Return the KV capacity, in whole pages, so that no request of the largest load waits.
        Each request gets `margin` more tokens, but at most the context of the model."""
        longest = self.context_with(margin)
        sizes: list[int] = []
        for load in self.loads:
            pages = ceil(min(load.tokens + margin, longest) / page)
            sizes.append(load.requests * pages * page)
        return max(sizes)

    def required_python(self, engine: str) -> Path:
        """Return the interpreter. Raise EngineEnvironmentError if none exists."""
        if self.python is None:
            raise EngineEnvironmentError(
                f"{engine} needs its environment; "
                f"create it with: bitbench env create {engine.lower()}"
            )
        return self.python

    def required_model(self, engine: str) -> Path:
        """Return the path of the model. Raise ModelError if none exists."""
        if self.variant.path is None:
            raise ModelError(f"{engine} needs a model; add one under `models` in the study.")
        return self.variant.path


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server, with the additional data that its requests need."""

    url: str  # "http://127.0.0.1:8123", without a path
    model: str
    api_key: str = field(default="", repr=False)  # empty if no key is sent
    # Merged into each request's body. It forces the output length in the server's own way.
    extra_body: Mapping[str, Json] = field(default_factory=dict)
    # The header with the number of requests in a batch, for a server with static batches.
    batch_header: str | None = None
    batch_size: int | None = None  # for that header, None for all requests in flight
    # False if it closes a connection after a stream. A later request on it would be lost.
    keeps_connections: bool = True
    vocabulary: "Vocabulary | None" = None  # for an engine that does not run bitbench's variants
    # The names in GET /metrics of the values in `records.trial.EngineMetrics`, empty without any.
    metrics: Mapping[str, str] = field(default_factory=dict)


class InstanceFailed(Exception):
    """An instance that did not start, or that died. It becomes the outcome of its points, and is
    never shown as an error."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.cause)
        self.failure = failure


class Instance(Protocol):
    """A running engine with one variant."""

    @property
    def pid(self) -> int | None:
        """The root of the process tree that counts as this instance's memory. None if it runs on
        another machine."""

    def wait_ready(self, timeout_s: float) -> Endpoint:
        """Block until it answers, and return its address. Raise InstanceFailed."""

    def facts(self) -> InstanceFacts:
        """Return what a ready instance reports about itself."""

    def failure(self) -> Failure | None:
        """Return why it died, from its exit code and log, or that another process has its port.
        Return None while it lives and answers."""

    def freeze(self) -> None:
        """Take its processor time away while others are measured. It keeps its memory. Call it only
        if `can_freeze` returns True."""

    def thaw(self) -> None:
        """Let it continue. Safe to call when it is not frozen."""

    def stop(self) -> None:
        """End it and everything it started, frozen or not. Safe to call twice."""


class Engine(Protocol):
    """An adapter that starts instances of one inference engine."""

    name: str
    environment: str | None  # of its instances on this machine, None if they need none
    # The environment that comes with it, for `bitbench env create`. None if it needs none, or runs
    # in the environment of another engine.
    own_environment: Environment | None
    needs_model: bool
    start_s: float  # typical time to ready on two cores, for estimates before any measurement
    overhead_bytes: int  # typical memory in addition to the weights, for the same estimates
    scoring: Scoring | None  # how it returns log-probabilities of a text, None if it does not
    scoring_reads_cache: bool  # whether they include the loss of a quantized KV cache
    # Whether an instance with a trace folder answers POST /start_profile and /stop_profile, and
    # marks its steps in the trace.
    can_profile: bool
    quick_args: Mapping[str, Argument]  # arguments for a faster start, for `bitbench quick`
    # The values of `kv_cache` in a study, each with the arguments that choose it.
    kv_cache_types: Mapping[str, Mapping[str, Argument]]

    def refuse(self, setup: EngineSetup, variant: Variant, workload: Workload) -> str | None:
        """Return why this point is meaningless or impossible, or None. Raise StudyFileError if the
        setup itself is wrong, such as a mistyped argument, so that the study does not run."""

    def can_freeze(self, setup: EngineSetup) -> bool:
        """Return True if signals may stop an idle instance and continue it later. False on several
        devices, whose processes watch each other, and for an instance on another machine."""

    def start(self, launch: Launch) -> Instance:
        """Start an instance without waiting for it."""


@runtime_checkable
class Deployable(Protocol):
    """An engine with a command that users start it by. Other engines lack this method."""

    def deployment(self, launch: Launch) -> tuple[Mapping[str, str], Sequence[str]]:
        """Return the variables and words of the command that serves the measured variant on the
        engine's usual port. It uses the Python of the launch, or else the PATH."""


@runtime_checkable
class Counting(Protocol):
    """An engine whose servers report counters at GET /metrics. Other engines lack this name."""

    metrics: Mapping[str, str]  # as `Endpoint.metrics`


@dataclass(frozen=True)
class Vocabulary:
    """The token ids that a random prompt may contain."""

    size: int
    excluded: tuple[int, ...] = ()
    words: tuple[int, ...] = ()  # ids of ordinary words, if known, a prompt contains only these


@dataclass(frozen=True)
class LoadJob:
    """A trial for the load generator."""

    endpoint: Endpoint
    workload: Workload
    vocabulary: Vocabulary
    seed: tuple[int, ...]  # study, workload, block, trial, request numbers are appended
    request_timeout_s: float
    stall_timeout_s: float
    folder: Path = Path()  # base of relative file names in the workload
    objectives: tuple[Objective, ...] = ()  # objectives of single requests
    rows_folder: Path | None = None  # for the rows of a long trial, None for temporary files
    # False for a study: a trial with a failed request does not count, so it ends early.
    go_on_after_failure: bool = False


@dataclass(frozen=True)
class LoadResult:
    """The result of a trial's load."""

    sums: "RequestSums"  # over the requests of all load processes
    rows: "RequestParts"
    health: ClientHealth
    started_at: str  # wall clock of the table's time zero
    duration_s: float

    @property
    def requests(self) -> "pa.Table":
        """The rows of the requests, with the columns of `records.tables`."""
        return self.rows.read()


class LoadClient(Protocol):
    """A sender of requests."""

    def run(
        self, job: LoadJob, on_progress: Callable[[LoadProgress], None] | None = None
    ) -> LoadResult:
        """Block until the trial has ended, and return its result. Report progress a few times a
        second. Raise LoadError."""


class Observer(Protocol):
    """A receiver of the events of a running study, such as the display of the command line."""

    def study_started(self, plan: Plan, trials_done: int) -> None: ...
    def group_started(self, group: Group, remaining_s: float | None) -> None: ...
    def instance_ready(self, record: InstanceRecord) -> None: ...
    def trial_started(self, point: Point, index: int, *, warmup: bool) -> None: ...
    def trial_running(self, progress: LoadProgress) -> None: ...
    def trial_finished(self, record: TrialRecord) -> None: ...
    def quality_running(self, config: Config, step: str) -> None: ...
    def quality_finished(self, record: QualityRecord) -> None: ...
    def note(self, message: str) -> None: ...
    def warn(self, message: str) -> None: ...

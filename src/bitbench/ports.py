"""What a stage needs from another one, as protocols over domain types. Only `measure` joins them."""

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
    """What a workload has in flight at once."""

    requests: int
    tokens: int  # of the longest of them, with its answer


@dataclass(frozen=True)
class Launch:
    """Everything an engine needs to start one instance."""

    setup: EngineSetup
    variant: Variant
    python: Path | None  # interpreter of the engine's environment; None for an engine without one
    log_file: Path
    loads: tuple[Load, ...]  # one after the other
    seed: int
    dtype: str | None = (
        None  # what to compute in where the setup does not say; None: the adapter's default
    )
    top_tokens: int = (
        0  # log-probabilities of so many tokens may be asked for at each place of a prompt
    )
    trace_folder: Path | None = (
        None  # where operator traces shall go; None: this instance is not profiled
    )
    capability: Capability | None = (
        None  # the least among the GPUs it sees; None: there are none, or it is unknown
    )

    @property
    def context_tokens(self) -> int:
        """Of the longest request that will come."""
        return max(load.tokens for load in self.loads)

    @property
    def concurrency(self) -> int:
        """The most requests that will be in flight."""
        return max(load.requests for load in self.loads)

    def context_with(self, margin: int) -> int:
        """The same with some more tokens, but no more than the model takes."""
        wanted = self.context_tokens + margin
        return min(wanted, self.variant.facts.context_tokens or wanted)

    def cached_tokens(self, page: int, margin: int) -> int:
        """Room in whole pages for every request of the largest load, with `margin` tokens for each but no more than the
        model takes: none waits for another's cache."""
        longest = self.context_with(margin)
        return max(
            load.requests * ceil(min(load.tokens + margin, longest) / page) * page
            for load in self.loads
        )

    def required_python(self, engine: str) -> Path:
        if self.python is None:
            raise EngineEnvironmentError(
                f"{engine} needs its environment; create it with: bitbench env create {engine.lower()}"
            )
        return self.python

    def required_model(self, engine: str) -> Path:
        if self.variant.path is None:
            raise ModelError(f"{engine} needs a model; add one under `models` in the study.")
        return self.variant.path


@dataclass(frozen=True)
class Endpoint:
    """Where to send requests, OpenAI-style, and what this server wants to be told besides."""

    url: str  # "http://127.0.0.1:8123", without a path
    model: str
    api_key: str = field(default="", repr=False)  # empty: none is sent
    # Merged into each request's body; forces the output length in the server's own way.
    extra_body: Mapping[str, Json] = field(default_factory=dict)
    # A server that runs static batches is told in this header how many requests belong together.
    batch_header: str | None = None
    batch_size: int | None = (
        None  # for that header; None: all requests that a workload has in flight
    )
    keeps_connections: bool = (
        True  # False: it closes each after a stream, and a request that follows on it is lost
    )
    vocabulary: "Vocabulary | None" = None  # for an engine that runs no variant of ours
    # What its GET /metrics calls the figures of `records.trial.EngineMetrics`; empty: it has none.
    metrics: Mapping[str, str] = field(default_factory=dict)


class InstanceFailed(Exception):
    """An instance did not come up, or died. Becomes the outcome of its points; never reaches a person as is."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.cause)
        self.failure = failure


class Instance(Protocol):
    @property
    def pid(self) -> int | None:
        """Root of the process tree whose memory is this instance's; None where it is not on this machine."""

    def wait_ready(self, timeout_s: float) -> Endpoint:
        """Block until it answers; raises InstanceFailed."""

    def facts(self) -> InstanceFacts:
        """What it says about itself, once ready."""

    def failure(self) -> Failure | None:
        """Why it died, read from its exit code and log, or who has its port; None while it lives and answers itself."""

    def freeze(self) -> None:
        """Take its processor time away while others are measured; it keeps its memory. Only where `can_freeze`."""

    def thaw(self) -> None:
        """Let it go on. Safe to call when it is not frozen."""

    def stop(self) -> None:
        """End it and everything it started, frozen or not. Safe to call twice."""


class Engine(Protocol):
    name: str
    environment: (
        str | None
    )  # name of the environment that its instances run in on this machine; None: in none
    # The environment that comes with it, for `bitbench env create`; None where it needs none, or runs in another's.
    own_environment: Environment | None
    needs_model: bool
    start_s: (
        float  # a typical time to ready on two cores, for estimates before anything was measured
    )
    overhead_bytes: int  # typical memory beside the weights, likewise
    scoring: (
        Scoring | None
    )  # how it gives log-probabilities of a text, for quality; None: it does not
    scoring_reads_cache: bool  # whether they show what a quantized KV cache loses
    # Whether an instance with a trace folder answers POST /start_profile and /stop_profile, and marks its steps as
    # `profiling.steps` reads them.
    can_profile: bool
    quick_args: Mapping[
        str, Argument
    ]  # of a setup for `bitbench quick`: what makes it start sooner
    # What `kv_cache` of a study may be, each with the arguments that choose it; empty: there is nothing to choose.
    kv_cache_types: Mapping[str, Mapping[str, Argument]]

    def refuse(self, setup: EngineSetup, variant: Variant, workload: Workload) -> str | None:
        """Why this point is meaningless or impossible, or None. Raises StudyFileError where the setup itself
        is wrong, such as a mistyped argument: then the study does not run."""

    def can_freeze(self, setup: EngineSetup) -> bool:
        """Whether an idle instance may be stopped by signals and go on later. Not one on several devices, whose
        processes watch each other, nor one that runs elsewhere."""

    def start(self, launch: Launch) -> Instance:
        """Start without waiting."""


@runtime_checkable
class Deployable(Protocol):
    """An engine that people start by a command of its own; one that has none lacks this method."""

    def deployment(self, launch: Launch) -> tuple[Mapping[str, str], Sequence[str]]:
        """Variables and words of the command that serves what was measured, on the engine's usual port: by the Python
        of the launch, else by what the PATH has."""


@runtime_checkable
class Counting(Protocol):
    """An engine whose servers say at GET /metrics what they count; one whose servers do not lacks this name."""

    metrics: Mapping[str, str]  # as `Endpoint.metrics`


@dataclass(frozen=True)
class Vocabulary:
    """Which token ids a random prompt may hold."""

    size: int
    excluded: tuple[int, ...] = ()
    words: tuple[
        int, ...
    ] = ()  # ids that stand for ordinary words: only these, where they are known


@dataclass(frozen=True)
class LoadJob:
    """One trial as the load generator sees it."""

    endpoint: Endpoint
    workload: Workload
    vocabulary: Vocabulary
    seed: tuple[int, ...]  # entropy: study, workload, block, trial; request numbers are added to it
    request_timeout_s: float
    stall_timeout_s: float
    folder: Path = Path()  # what file names in the workload are relative to
    objectives: tuple[Objective, ...] = ()  # that single requests are held to
    rows_folder: Path | None = (
        None  # where the rows of a long trial are written; None: among temporary files
    )
    go_on_after_failure: bool = (
        False  # a study's trial with a failed request does not count, so it ends there
    )


@dataclass(frozen=True)
class LoadResult:
    sums: "RequestSums"  # of the requests of all load processes
    rows: "RequestParts"
    health: ClientHealth
    started_at: str  # wall clock of the table's time zero
    duration_s: float

    @property
    def requests(self) -> "pa.Table":
        """Their rows, with the columns of records.tables."""
        return self.rows.read()


class LoadClient(Protocol):
    def run(
        self, job: LoadJob, on_progress: Callable[[LoadProgress], None] | None = None
    ) -> LoadResult:
        """Blocks until the trial has ended; tells meanwhile, a few times a second, how it goes. Raises LoadError."""


class Observer(Protocol):
    """Told what happens while a study runs; the command line draws it."""

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

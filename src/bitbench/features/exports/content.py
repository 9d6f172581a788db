"""What is exported of a study, whatever it is exported to: points with their figures, intervals and facts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

from bitbench.analysis.results.summary import PointSummary, StudySummary
from bitbench.records.lock import TELLING_FACTS, Lock
from bitbench.study.metrics import find_metric
from bitbench.study.plan import Point
from bitbench.study.workload import Workload
from bitbench.util.errors import BitbenchError


class ExportError(BitbenchError):
    """Another tool did not take a study's figures, or its package is missing."""


class Target(StrEnum):
    """As `bitbench export --to` spells it."""

    PROMETHEUS = "prometheus"
    OTEL = "otel"
    MLFLOW = "mlflow"
    WANDB = "wandb"


@dataclass(frozen=True)
class ExportedFigure:
    """In base units. `low` and `high` bound the interval; None where it is unknown or open."""

    name: str  # as `study.metrics` spells it, without a unit: "ttft_p99"
    unit: str
    meaning: str
    value: float
    low: float | None
    high: float | None

    def bounds(self) -> Iterator[tuple[str, float]]:
        """What tools without intervals get: the figure under its name, its limits under that and an ending."""
        yield "", self.value
        if self.low is not None:
            yield "_low", self.low
        if self.high is not None:
            yield "_high", self.high


@dataclass(frozen=True)
class ExportedPoint:
    id: str  # the same in each export of the same study: what was exported before is written over
    name: str
    labels: Mapping[str, str]  # variant, engine, workload
    figures: tuple[ExportedFigure, ...]
    facts: Mapping[str, str]  # of its config and its workload


@dataclass(frozen=True)
class ExportedStudy:
    name: str
    facts: Mapping[str, str]  # versions and machine
    points: tuple[ExportedPoint, ...] = ()


_SHAPE = ("concurrency", "input_tokens", "output_tokens")
_HOST = (*(name for name in TELLING_FACTS if name != "cpu_flags"), "os", "python")


def exported(summary: StudySummary, lock: Lock) -> ExportedStudy:
    """Return what is sent; points without a figure are left out."""
    facts = {"bitbench_version": lock.bitbench, "measured_at": lock.created_at}
    facts |= {f"host_{name}": lock.host.shown(name) for name in _HOST}
    workloads = {workload.name: workload for workload in summary.study.workloads}
    return ExportedStudy(
        summary.study.name,
        _known(facts),
        tuple(
            ExportedPoint(
                id=sha256(f"{summary.study.name}\0{lock.created_at}\0{found.point.name}".encode()).hexdigest()[:16],
                name=found.point.name,
                labels={
                    "variant": found.point.config.variant,
                    "engine": found.point.config.engine,
                    "workload": found.point.workload,
                },
                figures=tuple(_figures(found)),
                facts=_known(_facts(found.point, summary, lock, workloads.get(found.point.workload))),
            )
            for found in summary.points
            if found.metrics
        ),
    )


def _figures(found: PointSummary) -> Iterator[ExportedFigure]:
    """A percentile is that of all requests, where there are enough of them; one of single trials is not exported."""
    for column, estimate in found.metrics.items():
        metric = find_metric(column)
        if metric is None or metric.is_tail:
            continue
        yield ExportedFigure(metric.name, metric.unit, metric.meaning, estimate.value, estimate.low, estimate.high)
    for column, tail in found.tails.items():
        metric = find_metric(column)
        if metric is not None and metric.is_tail and tail.is_carried:
            yield ExportedFigure(metric.name, metric.unit, metric.meaning, tail.value, tail.low, tail.high)


def _facts(point: Point, summary: StudySummary, lock: Lock, workload: Workload | None) -> Iterator[tuple[str, object]]:
    config = next((known for known in summary.configs if known.config == point.config), None)
    if config is not None:
        yield "engine_version", ", ".join(config.engine_versions)
        yield "kernels", ", ".join(config.kernels)
    yield "variant_sha256", lock.variants.get(point.config.variant)
    if workload is not None:
        for part in _SHAPE:
            yield part, None if part in workload.unknown else getattr(workload, part)


def _known(facts: Mapping[str, object] | Iterator[tuple[str, object]]) -> dict[str, str]:
    return {name: str(value) for name, value in dict(facts).items() if value not in (None, "")}

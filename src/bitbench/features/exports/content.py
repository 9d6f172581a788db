"""The part of a study that is exported, in a form for every tool."""

from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

from bitbench.analysis.results.summary import PointSummary, StudySummary
from bitbench.records.lock import TELLING_FACTS, Lock
from bitbench.study.metrics import find_metric

_HOST = (*(name for name in TELLING_FACTS if name != "cpu_flags"), "os", "python")
_SHAPE = ("concurrency", "input_tokens", "output_tokens")


class ExportedFigure(NamedTuple):
    """A value of a metric, or a limit of its interval. The tools have no intervals."""

    name: str  # as `study.metrics` spells it, without a unit: "ttft_p99"
    limit: str  # "", "_low" or "_high"
    unit: str
    meaning: str
    value: float  # in base units


class ExportedPoint(NamedTuple):
    """A point with its metrics and facts."""

    id: str  # the same in each export of a study, so that an export replaces the one before
    name: str
    labels: dict[str, str]  # study, variant, engine, workload
    facts: dict[str, str]  # the labels, and facts on versions, machine, config and workload
    figures: tuple[ExportedFigure, ...]


def list_exported_points(summary: StudySummary, lock: Lock) -> list[ExportedPoint]:
    """Return the points to export. Points without metrics are left out."""
    return [_make_point(point, summary, lock) for point in summary.points if point.metrics]


def _make_point(row: PointSummary, summary: StudySummary, lock: Lock) -> ExportedPoint:
    study = summary.study
    config = row.point.config
    workload = study.workload(row.point.workload)
    labels = {
        "study": study.name,
        "variant": config.variant,
        "engine": config.engine,
        "workload": workload.name,
    }
    facts: dict[str, object] = {"bitbench_version": lock.bitbench, "measured_at": lock.created_at}
    facts |= {f"host_{fact}": lock.host.shown(fact) for fact in _HOST}
    facts["variant_sha256"] = lock.variants.get(config.variant)
    for candidate in summary.configs:
        if candidate.config == config:
            facts["engine_version"] = ", ".join(candidate.engine_versions)
            facts["kernels"] = ", ".join(candidate.kernels)
    facts |= {part: getattr(workload, part) for part in _SHAPE if part not in workload.unknown}
    texts = {name: str(value) for name, value in facts.items() if value not in (None, "")}
    digest = sha256(f"{study.name}\0{lock.created_at}\0{row.point.name}".encode()).hexdigest()
    return ExportedPoint(
        digest[:16], row.point.name, labels, labels | texts, tuple(_iter_figures(row))
    )


def _iter_figures(row: PointSummary) -> Iterator[ExportedFigure]:
    """Yield the point's metrics with their limits. A percentile is exported only over all requests,
    and only if there are enough of them."""
    tails = {column: tail for column, tail in row.tails.items() if tail.is_carried}
    for column, estimate in [*row.metrics.items(), *tails.items()]:
        metric = find_metric(column)
        if metric is None or metric.is_tail is not (estimate is tails.get(column)):
            continue
        for limit, value in (
            ("", estimate.value),
            ("_low", estimate.low),
            ("_high", estimate.high),
        ):
            if value is not None:
                yield ExportedFigure(metric.name, limit, metric.unit, metric.meaning, value)

"""What is exported of a study, whatever it is exported to."""

from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

from bitbench.analysis.results.summary import PointSummary, StudySummary
from bitbench.records.lock import TELLING_FACTS, Lock
from bitbench.study.metrics import find_metric

_HOST = (*(name for name in TELLING_FACTS if name != "cpu_flags"), "os", "python")
_SHAPE = ("concurrency", "input_tokens", "output_tokens")


class ExportedFigure(NamedTuple):
    name: str  # as `study.metrics` spells it, without a unit: "ttft_p99"
    limit: str  # "", "_low" or "_high": these tools know no intervals, so each limit is a figure of its own
    unit: str
    meaning: str
    value: float  # in base units


class ExportedPoint(NamedTuple):
    id: str  # the same in each export of the same study: what was exported before is written over
    name: str
    labels: dict[str, str]  # study, variant, engine, workload
    facts: dict[str, str]  # these, and what is known of versions, machine, config and workload
    figures: tuple[ExportedFigure, ...]


def exported(summary: StudySummary, lock: Lock) -> list[ExportedPoint]:
    """Return what is sent; points without a figure are left out."""
    return [_point(found, summary, lock) for found in summary.points if found.metrics]


def _point(found: PointSummary, summary: StudySummary, lock: Lock) -> ExportedPoint:
    study, config, workload = summary.study, found.point.config, found.point.workload
    labels = {
        "study": study.name,
        "variant": config.variant,
        "engine": config.engine,
        "workload": workload,
    }
    facts: dict[str, object] = {"bitbench_version": lock.bitbench, "measured_at": lock.created_at}
    facts |= {f"host_{fact}": lock.host.shown(fact) for fact in _HOST}
    facts["variant_sha256"] = lock.variants.get(config.variant)
    for known in summary.configs:
        if known.config == config:
            facts |= {
                "engine_version": ", ".join(known.engine_versions),
                "kernels": ", ".join(known.kernels),
            }
    shape = study.workload(workload)
    facts |= {part: getattr(shape, part) for part in _SHAPE if part not in shape.unknown}
    known_facts = {name: str(value) for name, value in facts.items() if value not in (None, "")}
    point_id = sha256(f"{study.name}\0{lock.created_at}\0{found.point.name}".encode()).hexdigest()[
        :16
    ]
    return ExportedPoint(
        point_id, found.point.name, labels, labels | known_facts, tuple(_figures(found))
    )


def _figures(found: PointSummary) -> Iterator[ExportedFigure]:
    """A percentile is that of all requests, where there are enough of them; one of single trials is not exported."""
    tails = {column: tail for column, tail in found.tails.items() if tail.is_carried}
    for column, estimate in [*found.metrics.items(), *tails.items()]:
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

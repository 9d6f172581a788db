"""What a query over many cards needs of each point of a study: what it is, its figures, its share of the roof."""

import json
from collections.abc import Sequence
from hashlib import sha256

from bitbench.analysis.comparability import CONFIG_FACTS, kernels_of, tool_of
from bitbench.analysis.intervals import estimate
from bitbench.analysis.phases import step_sample
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.facts import Fact
from bitbench.analysis.results.summary import StudySummary
from bitbench.analysis.roofline import point_roofs
from bitbench.features.cards.types import CardPhase, CardPoint, CardPoints
from bitbench.records.roof import PointRoof
from bitbench.records.study_records import StudyRecords
from bitbench.study.metrics import METRICS
from bitbench.study.plan import Point

FIGURES = ("output_throughput", "ttft_s", "tpot_s", "latency_s", "peak_bytes")


def card_points(of: StudyRecords, summary: StudySummary) -> CardPoints:
    primary_metric = METRICS[of.study.measure.metric].column
    figures, roofs = dict.fromkeys((primary_metric, *FIGURES)), point_roofs(of)
    return CardPoints(
        study=of.study.name,
        created_at=of.lock.created_at,
        primary_metric=primary_metric,
        host=of.lock.host,
        has_roof=of.roof is not None,
        points=tuple(
            _point(of, point.point, {name: point.metrics[name] for name in figures if name in point.metrics}, roofs)
            for point in summary.points
            if point.metrics
        ),
    )


def _point(of: StudyRecords, point: Point, figures: dict[str, Estimate], roofs: Sequence[PointRoof]) -> CardPoint:
    variant, setup = of.plan.variant(point.config.variant), of.study.engine(point.config.engine)
    workload = of.study.workload(point.workload)
    shape = {name: value for name, value in workload.model_dump(mode="json").items() if name != "name"}
    facts = {fact: read(of, point.config) for fact, read in CONFIG_FACTS.items()}
    return CardPoint(
        model=variant.model_name,
        recipe=variant.recipe,
        engine=setup.engine,
        workload=workload.name,
        shape=json.dumps(shape, sort_keys=True),
        facts={**facts, Fact.TOOL: tool_of(of), Fact.ENVIRONMENT: _packages(of, setup.engine)},
        kernels=kernels_of(of, point.config),
        figures=figures,
        phases=tuple(_phases(of, point, roofs)),
    )


def _phases(of: StudyRecords, point: Point, roofs: Sequence[PointRoof]) -> list[CardPhase]:
    workload, found = of.study.workload(point.workload), []
    for roof in roofs:
        if roof.point != point:
            continue
        seconds = step_sample(roof.phase, workload, of.counted(point))
        if seconds is not None:
            step = estimate(seconds, of.study.measure.confidence)
            found.append(CardPhase(phase=roof.phase, step=step, attainable_s=roof.attainable.seconds))
    return found


def _packages(of: StudyRecords, engine: str) -> str | None:
    """All versions in the engine's environment, as one short hash; None where it has none or they are unknown."""
    versions = of.lock.environments.get(engine)
    if not versions:
        return None
    text = "\n".join(f"{name}=={version}" for name, version in sorted(versions.items()))
    return f"{len(versions)} packages, {sha256(text.encode()).hexdigest()[:12]}"

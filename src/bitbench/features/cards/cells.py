"""What a query over many cards needs of each cell of a study: what it is, its figures, its share of the roof."""

import json
from collections.abc import Sequence
from hashlib import sha256

from bitbench.analysis.comparability import CONTENDER_FACTS, kernels_of, tool_of
from bitbench.analysis.intervals import estimate
from bitbench.analysis.phases import step_sample
from bitbench.analysis.results.facts import Fact
from bitbench.analysis.results.summary import Estimate, StudySummary
from bitbench.analysis.roofline import cell_roofs
from bitbench.features.cards.types import CardCell, CardCells, CardPhase
from bitbench.records.roof import CellRoof
from bitbench.records.study_records import StudyRecords
from bitbench.study.metrics import METRICS
from bitbench.study.plan import Cell

FIGURES = ("output_throughput", "ttft_s", "tpot_s", "latency_s", "peak_bytes")


def card_cells(of: StudyRecords, summary: StudySummary) -> CardCells:
    headline = METRICS[of.study.measure.headline].column
    figures, roofs = dict.fromkeys((headline, *FIGURES)), cell_roofs(of)
    return CardCells(
        study=of.study.name,
        created_at=of.lock.created_at,
        headline=headline,
        host=of.lock.host,
        has_roof=of.roof is not None,
        cells=tuple(
            _cell(of, cell.cell, {name: cell.metrics[name] for name in figures if name in cell.metrics}, roofs)
            for cell in summary.cells
            if cell.metrics
        ),
    )


def _cell(of: StudyRecords, cell: Cell, figures: dict[str, Estimate], roofs: Sequence[CellRoof]) -> CardCell:
    variant, setup = of.plan.variant(cell.contender.variant), of.study.engine(cell.contender.engine)
    workload = of.study.workload(cell.workload)
    shape = {name: value for name, value in workload.model_dump(mode="json").items() if name != "name"}
    facts = {fact: read(of, cell.contender) for fact, read in CONTENDER_FACTS.items()}
    return CardCell(
        model=variant.model_name,
        recipe=variant.recipe,
        engine=setup.engine,
        workload=workload.name,
        shape=json.dumps(shape, sort_keys=True),
        facts={**facts, Fact.TOOL: tool_of(of), Fact.ENVIRONMENT: _packages(of, setup.engine)},
        kernels=kernels_of(of, cell.contender),
        figures=figures,
        phases=tuple(_phases(of, cell, roofs)),
    )


def _phases(of: StudyRecords, cell: Cell, roofs: Sequence[CellRoof]) -> list[CardPhase]:
    workload, found = of.study.workload(cell.workload), []
    for roof in roofs:
        if roof.cell != cell:
            continue
        seconds = step_sample(roof.phase, workload, of.counted(cell))
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

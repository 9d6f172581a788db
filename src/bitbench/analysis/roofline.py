"""Every cell of a study against the roof of its machine."""

from bitbench.analysis.config_facts import side_of, variant_of
from bitbench.analysis.phases import phase_side, step_sample
from bitbench.analysis.results.comparison import RoofShare
from bitbench.records.profile import Phase
from bitbench.records.roof import CellRoof
from bitbench.records.study_records import StudyRecords


def roof_shares(before: StudyRecords, after: StudyRecords) -> tuple[RoofShare, ...]:
    """Of the cells that both have; none where one of the roofs was not measured."""
    known = {(cell_roof.cell, cell_roof.phase): cell_roof.share for cell_roof in cell_roofs(before)}
    return tuple(
        RoofShare(cell=one.cell, phase=one.phase, before=known[one.cell, one.phase], after=one.share)
        for one in cell_roofs(after)
        if (one.cell, one.phase) in known
    )


def cell_roofs(of: StudyRecords) -> tuple[CellRoof, ...]:
    """By workload, then phase. Without those whose cost is unknown; none where the roof was not measured."""
    if of.roof is None:
        return ()
    found = []
    for workload in of.plan.study.workloads:
        cells = [cell for cell in of.plan.cells if cell.workload == workload.name]
        for phase in Phase:
            for cell in cells:
                seconds = step_sample(phase, workload, of.counted(cell))
                variant = variant_of(of.plan, cell.contender)
                if seconds is None or variant is None:
                    continue
                known = side_of(of, cell.contender, workload)
                confidence = of.plan.study.measure.confidence
                side = phase_side(phase, workload, variant, known, seconds=seconds, confidence=confidence, roof=of.roof)
                if side.cost is not None and side.attainable is not None:
                    found.append(
                        CellRoof(
                            cell=cell, phase=phase, cost=side.cost, attainable=side.attainable, step_s=side.step.mean
                        )
                    )
    return tuple(found)

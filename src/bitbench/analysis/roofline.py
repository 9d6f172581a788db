"""Every point of a study against the roof of its machine."""

from bitbench.analysis.configs import side_of, variant_of
from bitbench.analysis.phases import phase_side, step_sample
from bitbench.analysis.results.comparison import RoofShare
from bitbench.records.profile import Phase
from bitbench.records.roof import PointRoof
from bitbench.records.study_records import StudyRecords


def roof_shares(before: StudyRecords, after: StudyRecords) -> tuple[RoofShare, ...]:
    """Of the points that both have; none where one of the roofs was not measured."""
    known = {(point_roof.point, point_roof.phase): point_roof.share for point_roof in point_roofs(before)}
    return tuple(
        RoofShare(point=roof.point, phase=roof.phase, before=known[roof.point, roof.phase], after=roof.share)
        for roof in point_roofs(after)
        if (roof.point, roof.phase) in known
    )


def point_roofs(of: StudyRecords) -> tuple[PointRoof, ...]:
    """By workload, then phase. Without those whose cost is unknown; none where the roof was not measured."""
    if of.roof is None:
        return ()
    found = []
    for workload in of.plan.study.workloads:
        points = [point for point in of.plan.points if point.workload == workload.name]
        for phase in Phase:
            for point in points:
                seconds = step_sample(phase, workload, of.counted(point))
                variant = variant_of(of.plan, point.config)
                if seconds is None or variant is None:
                    continue
                known = side_of(of, point.config, workload)
                confidence = of.plan.study.measure.confidence
                side = phase_side(phase, workload, variant, known, seconds=seconds, confidence=confidence, roof=of.roof)
                if side.cost is not None and side.attainable is not None:
                    found.append(
                        PointRoof(
                            point=point, phase=phase, cost=side.cost, attainable=side.attainable, step_s=side.step.value
                        )
                    )
    return tuple(found)

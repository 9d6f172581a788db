"""A study as the file that a person could have written for it."""

import yaml

from bitbench.study.study import Study
from bitbench.study.workload import Workload
from bitbench.util.units import BY_HAND, written_seconds


def study_text(study: Study) -> str:
    """Reading it again gives an equal study."""
    content = study.model_dump(mode="json", exclude_defaults=True, exclude={"workloads", "objectives"}, context=BY_HAND)
    content = {"bitbench": study.bitbench, **content}
    if study.workloads:
        content["workloads"] = [_workload(workload) for workload in study.workloads]
    if study.objectives:
        content["objectives"] = {objective.name: written_seconds(objective.limit) for objective in study.objectives}
    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)
    return text


def _workload(workload: Workload) -> dict[str, object]:
    """Defaults are left out but for the kind of an arrival, which says what the rest of it means."""
    content = workload.model_dump(
        mode="json", exclude_defaults=True, by_alias=True, exclude={"arrival"}, context=BY_HAND
    )
    arrival = workload.arrival.model_dump(mode="json", by_alias=True, context=BY_HAND)
    content["arrival"] = arrival["kind"] if len(arrival) == 1 else arrival
    return content

"""What to run under limits, from a study folder."""

from collections.abc import Mapping, Sequence

from bitbench.core.found.recommendation import Limits, Recommendation
from bitbench.ground.errors import CannotRecommendError
from bitbench.ground.units import parse_bytes, parse_fraction
from bitbench.lab.checked import checked, checked_objectives
from bitbench.lab.study import Lab
from bitbench.statistics.objectives import objective_estimates
from bitbench.statistics.recommend import Counted, objectives_to_count, recommend
from bitbench.store.folder import StudyFolder


def recommend_from(
    lab: Lab,
    folder: StudyFolder,
    limits: Limits,
    *,
    workloads: Sequence[str] = (),
    price_per_hour: float | None = None,
) -> Recommendation:
    """The fastest contender within the limits, for each of these workloads or for all of the study."""
    return recommend(
        lab.summary(folder),
        limits,
        workloads=workloads,
        counted=_counted(folder, limits),
        price_per_hour=price_per_hour,
    )


def limits_of(
    slo: str | Mapping[str, str | float] | None, max_memory: str | int | None, max_quality_loss: str | float | None
) -> Limits:
    """As a person writes them (`4GB`, `1%`), or as numbers: bytes, and a share of one."""
    refuse = CannotRecommendError
    return Limits(
        objectives=checked_objectives(slo, refuse),
        memory_bytes=None if max_memory is None else checked(lambda: parse_bytes(max_memory), refuse),
        quality_loss=None if max_quality_loss is None else checked(lambda: parse_fraction(max_quality_loss), refuse),
    )


def _counted(folder: StudyFolder, limits: Limits) -> Counted:
    """Objectives that no figure of a trial answers, such as ttft_p90, from the request rows."""
    wanted = objectives_to_count(limits.objectives)
    if not wanted:
        return {}
    records = folder.read()
    trials = [trial for trial in records.trials if trial.counts and trial.requests_file]
    return {
        objective.name: objective_estimates(
            objective,
            ((trial, records.requests_of(trial, None)) for trial in trials),
            seed=records.study.seed,
            confidence=records.study.measure.confidence,
        )
        for objective in wanted
    }

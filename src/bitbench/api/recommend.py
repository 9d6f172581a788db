"""What to run under limits, from a study folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bitbench.analysis.recommend import recommend
from bitbench.analysis.results.recommendation import Choice, Limits, Recommendation
from bitbench.api.deploy import deploy_words
from bitbench.records.folder import StudyFolder
from bitbench.records.study_records import StudyRecords
from bitbench.reports.write import report_summary
from bitbench.study.checked import checked, checked_objectives
from bitbench.util.units import parse_bytes, parse_fraction


def recommend_from(
    folder: StudyFolder,
    home: Path,
    limits: Limits,
    *,
    workloads: Sequence[str] = (),
    engines: Sequence[str] = (),
    price_per_hour: float | None = None,
) -> Recommendation:
    """The fastest config within the limits on these engines, for each of these workloads; or on all, for all."""
    records = folder.read()
    summary = report_summary(folder, home, records)
    found = recommend(summary, limits, workloads=workloads, engines=engines, price_per_hour=price_per_hour)
    return found.model_copy(update={"choices": tuple(_with_command(records, choice, home) for choice in found.choices)})


def _with_command(records: StudyRecords, choice: Choice, home: Path) -> Choice:
    if choice.chosen is None:
        return choice
    return choice.model_copy(update={"deploy": deploy_words(records, choice.chosen, home)})


def limits_of(
    slo: str | Mapping[str, str | float] | None, max_memory: str | int | None, max_quality_loss: str | float | None
) -> Limits:
    """As a person writes them (`4GB`, `1%`), or as numbers: bytes, and a share of one."""
    return Limits(
        objectives=checked_objectives(slo),
        memory_bytes=None if max_memory is None else checked(lambda: parse_bytes(max_memory), about="--max-memory"),
        quality_loss=None
        if max_quality_loss is None
        else checked(lambda: parse_fraction(max_quality_loss), about="--max-quality-loss"),
    )

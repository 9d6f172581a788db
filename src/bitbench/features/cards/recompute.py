"""Do the figures that a card states follow from its records? Every one is computed again and compared."""

import json
from collections.abc import Iterator

from bitbench.analysis.objectives import judge_objectives
from bitbench.analysis.trial import measure
from bitbench.analysis.values import compare_values
from bitbench.features.cards.types import Check, Checked
from bitbench.records.study_records import StudyRecords
from bitbench.records.trial import TrialMetrics, TrialRecord
from bitbench.study.base import Json, Record
from bitbench.util.errors import RowsNotKeptError

SHOWN = 10  # differences that are named


def recompute_trials(of: StudyRecords) -> Checked:
    """Each trial's own figures, from its request rows."""
    compared, different, unchecked = 0, list[str](), 0
    for trial in of.trials:
        stated = _stated(trial)
        if not stated["metrics"] and stated["objectives"] is None:
            continue
        try:
            found = _of_rows(of, trial)
        except RowsNotKeptError:
            unchecked += 1
            continue
        count, differences = compare_values(stated, found, trial.id)
        compared += count
        different += differences
    return Checked(
        check=Check.TRIALS,
        figures=compared,
        different=tuple(different[:SHOWN]),
        different_count=len(different),
        unchecked=unchecked,
        why_unchecked=None if unchecked == 0 else f"the card has no request rows of {unchecked:,} trials",
    )


def recompute(check: Check, stated: Json, found: Record, *, whole: bool = False) -> Checked:
    """What the card states, as it was read from JSON, against what this bitbench computes from its records.

    What an older version did not state is no difference, unless it must be the `whole`: what a reader would put in its
    place is not what the records say. What this version does not compute was not checked.
    """
    content = json.loads(found.model_dump_json())
    compared, different = compare_values(stated, content, whole=whole)
    unknown = [*_unknown(stated, content)]
    return Checked(
        check=check,
        figures=compared,
        different=tuple(different[:SHOWN]),
        different_count=len(different),
        unchecked=len(unknown),
        why_unchecked=None if not unknown else f"this bitbench does not compute {', '.join(unknown[:SHOWN])}",
    )


def _stated(trial: TrialRecord) -> dict[str, Json]:
    known = {name: value for name, value in trial.metrics.model_dump(mode="json").items() if value is not None}
    objectives = None if trial.objectives is None else trial.objectives.model_dump(mode="json")
    return {"metrics": known, "objectives": objectives, "requests": trial.requests, "failed": trial.failed_requests}


def _of_rows(of: StudyRecords, trial: TrialRecord) -> dict[str, Json]:
    rows = of.requests_of(trial, None)
    metrics = measure(rows, of.study.objectives, trial.energy)
    objectives = judge_objectives(rows, of.study.objectives) if trial.objectives is not None else None
    failed = sum(status != "ok" for status in rows.column("status").to_pylist())
    found: dict[str, Json] = {name: getattr(metrics, name) for name in TrialMetrics.model_fields}
    return {
        "metrics": found,
        "objectives": None if objectives is None else objectives.model_dump(mode="json"),
        "requests": rows.num_rows,
        "failed": failed,
    }


def _unknown(stated: Json, found: Json, where: str = "") -> Iterator[str]:
    """Where the card has a name that this version does not."""
    if isinstance(stated, dict) and isinstance(found, dict):
        for name in stated:
            place = f"{where}.{name}" if where else str(name)
            if name not in found:
                yield place
            else:
                yield from _unknown(stated[name], found[name], place)
    elif isinstance(stated, list) and isinstance(found, list):
        for index, (inner, other) in enumerate(zip(stated, found, strict=False)):
            yield from _unknown(inner, other, f"{where}[{index}]")

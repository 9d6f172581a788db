"""A summary and its trials as data for programs: one row per trial as CSV, and both as JSON."""

import csv
import io
import json
from collections.abc import Sequence

from bitbench.analysis.results.summary import StudySummary
from bitbench.records.trial import Memory, TrialMetrics, TrialRecord
from bitbench.reports.document.words import words_in_one_line
from bitbench.study.base import Json
from bitbench.study.secrets import is_secret
from bitbench.study.workload import Length, workload_length_text

TIDY_FORMAT = 1  # of the JSON form; 1: first published form
HIDDEN = "•••"
# A spreadsheet takes a point that begins with one of these for a formula; an apostrophe before it makes it text.
_FORMULA = ("=", "+", "-", "@")


def csv_trial_columns() -> list[str]:
    return [*_NAMES, *TrialMetrics.model_fields, *Memory.model_fields, *_ENDING]


_NAMES = (
    "study", "trial", "kind", "variant", "engine", "workload", "concurrency", "input_tokens", "output_tokens",
    "instance", "block", "index", "turn", "started_at", "duration_s", "outcome", "outlier",
)  # fmt: skip
_ENDING = ("requests", "failed_requests", "cause")


def _csv_trial_rows(summary: StudySummary, trials: Sequence[TrialRecord]) -> list[dict[str, Json]]:
    """One row per trial, warm-up included; what is not known is None."""
    flagged = {outlier.trial_id for point in summary.points for outlier in point.outliers}
    rows = []
    for trial in trials:
        workload = summary.study.workload(trial.point.workload)
        lengths = {
            part: None if part in workload.unknown else _length(getattr(workload, part))
            for part in ("input_tokens", "output_tokens")
        }
        rows.append(
            {
                "study": summary.study.name,
                "trial": trial.id,
                "kind": trial.kind,
                "variant": trial.point.config.variant,
                "engine": trial.point.config.engine,
                "workload": trial.point.workload,
                "concurrency": None if "concurrency" in workload.unknown else workload.concurrency,
                **lengths,
                "instance": trial.instance_id,
                "block": trial.block,
                "index": trial.index,
                "turn": trial.turn,
                "started_at": trial.started_at,
                "duration_s": trial.duration_s,
                "outcome": trial.outcome.value,
                "outlier": trial.id in flagged,
                **dict(trial.metrics),
                **dict(trial.memory),
                "requests": trial.requests,
                "failed_requests": trial.failed_requests,
                "cause": trial.cause,
            }
        )
    return rows


def _length(tokens: Length) -> int | str:
    return tokens if isinstance(tokens, int) else workload_length_text(tokens)


def csv_text(summary: StudySummary, trials: Sequence[TrialRecord]) -> str:
    """Empty points are what is not known."""
    text = io.StringIO()
    writer = csv.DictWriter(text, csv_trial_columns(), lineterminator="\n")
    writer.writeheader()
    for row in _csv_trial_rows(summary, trials):
        writer.writerow({name: harmless_cell(value) for name, value in row.items()})
    return text.getvalue()


def harmless_cell(value: Json) -> Json:
    """Neither a formula to a spreadsheet nor a command to a terminal."""
    if not isinstance(value, str):
        return value
    text = words_in_one_line(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def json_text(summary: StudySummary, trials: Sequence[TrialRecord]) -> str:
    content = {
        "bitbench_report": TIDY_FORMAT,
        "definitions": {name: definition.model_dump() for name, definition in summary.definitions.items()},
        "summary": _without_secrets(summary.model_dump(mode="json", exclude={"definitions"})),
        "trials": _csv_trial_rows(summary, trials),
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _without_secrets(content: Json) -> Json:
    """Arguments and variables whose name says that they are a key."""
    if isinstance(content, dict):
        return {
            name: HIDDEN if isinstance(value, str) and is_secret(name) else _without_secrets(value)
            for name, value in content.items()
        }
    return [_without_secrets(item) for item in content] if isinstance(content, list) else content

"""A summary and its trials as data for programs: one row per trial as CSV, and both as JSON."""

import csv
import io
import json
from collections.abc import Mapping, Sequence

from bitbench.analysis.results.summary import StudySummary
from bitbench.records.folder import StudyRecords
from bitbench.reports.document.words import words_in_one_line
from bitbench.study.base import Json
from bitbench.study.secrets import is_secret

TIDY_FORMAT = 1  # of the JSON form; 1: first published form
HIDDEN = "•••"
# A spreadsheet takes a point that begins with one of these for a formula; an apostrophe before it makes it text.
_FORMULA = ("=", "+", "-", "@")


def trial_rows(summary: StudySummary, of: StudyRecords) -> list[dict[str, Json]]:
    """Return one row per trial, warm-up included, with the columns of `bitbench query`. What is not known is None."""
    from bitbench.records.arrow_tables import study_arrow_table

    flagged = {outlier.trial_id for point in summary.points for outlier in point.outliers}
    rows: list[dict[str, Json]] = (
        study_arrow_table(of, "trials").drop_columns(["folder"]).to_pylist()
    )
    for row in rows:
        row["started_at"] = row["started_at"] and row["started_at"].isoformat()
        row["outlier"] = row["trial"] in flagged
    return rows


def csv_text(rows: Sequence[Mapping[str, Json]]) -> str:
    """Return rows of one kind as CSV. Empty cells are what is not known."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: harmless_cell(value) for name, value in row.items()})
    return text.getvalue()


def harmless_cell(value: Json) -> Json:
    """Neither a formula to a spreadsheet nor a command to a terminal."""
    if not isinstance(value, str):
        return value
    text = words_in_one_line(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def json_text(summary: StudySummary, trials: Sequence[Mapping[str, Json]]) -> str:
    content = {
        "bitbench_report": TIDY_FORMAT,
        "definitions": {
            name: definition.model_dump() for name, definition in summary.definitions.items()
        },
        "summary": _without_secrets(summary.model_dump(mode="json", exclude={"definitions"})),
        "trials": trials,
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

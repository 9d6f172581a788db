"""A summary and its trials as data: one row per trial as CSV, and both as JSON."""

import csv
import io
import json
from collections.abc import Mapping, Sequence

from bitbench.analysis.results.summary import StudySummary
from bitbench.records.folder import StudyRecords
from bitbench.reports.document.words import format_one_line
from bitbench.study.base import Json
from bitbench.study.secrets import is_secret

TIDY_FORMAT = 1  # version of the JSON format; 1 is the first published one
HIDDEN = "•••"
# A spreadsheet reads a cell that begins with one of these as a formula. An apostrophe before it
# makes it text.
_FORMULA = ("=", "+", "-", "@")


def list_trial_rows(summary: StudySummary, records: StudyRecords) -> list[dict[str, Json]]:
    """Return one row per trial, warm-up included, with the columns of `bitbench query`.

    Unknown values are None.
    """
    from bitbench.records.arrow_tables import make_arrow_table

    flagged = {outlier.trial_id for point in summary.points for outlier in point.outliers}
    table = make_arrow_table(records, "trials").drop_columns(["folder"])
    rows: list[dict[str, Json]] = table.to_pylist()
    for row in rows:
        row["started_at"] = row["started_at"] and row["started_at"].isoformat()
        row["outlier"] = row["trial"] in flagged
    return rows


def format_csv(rows: Sequence[Mapping[str, Json]]) -> str:
    """Return rows of one kind as CSV. A cell is empty if its value is unknown."""
    text = io.StringIO()
    columns = list(rows[0]) if rows else []
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: escape_cell(value) for name, value in row.items()})
    return text.getvalue()


def escape_cell(value: Json) -> Json:
    """Return a value that a spreadsheet reads as text and that cannot control a terminal."""
    if not isinstance(value, str):
        return value
    text = format_one_line(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def format_json(summary: StudySummary, trials: Sequence[Mapping[str, Json]]) -> str:
    """Return the summary, its definitions and its trials as JSON, without secrets."""
    definitions = {name: metric.model_dump() for name, metric in summary.definitions.items()}
    content = {
        "bitbench_report": TIDY_FORMAT,
        "definitions": definitions,
        "summary": _hide_secrets(summary.model_dump(mode="json", exclude={"definitions"})),
        "trials": trials,
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _hide_secrets(content: Json) -> Json:
    """Return the content with the values hidden whose names look like secrets."""
    if isinstance(content, list):
        return list(map(_hide_secrets, content))
    if not isinstance(content, dict):
        return content
    result = {}
    for name, value in content.items():
        is_hidden = isinstance(value, str) and is_secret(name)
        result[name] = HIDDEN if is_hidden else _hide_secrets(value)
    return result

"""A study folder as a person works with it in Python: typed records, figures with intervals, tables, and its
published forms as text."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import PointSummary, StudySummary
from bitbench.feature import offered
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import InstanceRecord, Outcome, TrialRecord
from bitbench.reports.document.data import csv_text, json_text, trial_rows
from bitbench.reports.formats import Form
from bitbench.reports.write import StudyReport
from bitbench.study.base import Json
from bitbench.study.metrics import find_metric
from bitbench.study.plan import Plan
from bitbench.study.study import Study
from bitbench.util.errors import StoreError

if TYPE_CHECKING:
    import pyarrow as pa


R = TypeVar("R")


class ResultTable:
    """Rows that are read when they are asked for."""

    def __init__(self, read: "Callable[[], pa.Table]") -> None:
        self._read = read

    def to_arrow(self) -> "pa.Table":
        return self._read()

    def to_pandas(self) -> Any:
        """A pandas.DataFrame; pandas must be installed separately."""
        try:
            import_module("pandas")
        except ImportError as error:
            raise StoreError(
                "to_pandas() needs pandas; `pip install pandas`, or use to_arrow()"
            ) from error
        return self.to_arrow().to_pandas()


class Records(ResultTable, Sequence[R], Generic[R]):
    """A sequence of typed records, and the same as a table."""

    def __init__(self, records: Sequence[R], read: "Callable[[], pa.Table]") -> None:
        super().__init__(read)
        self._records = tuple(records)

    @overload
    def __getitem__(self, index: int) -> R: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[R, ...]: ...
    def __getitem__(self, index: int | slice) -> R | tuple[R, ...]:
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[R]:
        return iter(self._records)


class Results:
    """What a study folder holds. Tables of records have the columns of `bitbench query`."""

    def __init__(self, folder: StudyFolder, home: Path) -> None:
        self._of = StudyReport(folder, home)

    def __repr__(self) -> str:
        return f"<bitbench.Results of {self.study.name}: {len(self.trials)} trials in {self.path}>"

    @property
    def path(self) -> Path:
        return self._of.folder.path

    @property
    def plan(self) -> Plan:
        return self._of.records.plan

    @property
    def study(self) -> Study:
        return self._of.records.study

    @property
    def summary(self) -> StudySummary:
        """Everything that a report says, in numbers: rankings, open questions, causes, and estimates with intervals."""
        return self._of.summary

    @cached_property
    def trials(self) -> Records[TrialRecord]:
        """The measured trials that ended well: what a mean may be taken over."""
        return self._trials(lambda trial: trial.kind == "measured" and trial.outcome is Outcome.OK)

    @cached_property
    def excluded_trials(self) -> Records[TrialRecord]:
        """The measured trials that enter no figure, each with its outcome: failed, or rejected."""
        return self._trials(
            lambda trial: trial.kind == "measured" and trial.outcome is not Outcome.OK
        )

    @cached_property
    def warm_ups(self) -> Records[TrialRecord]:
        """The trials before the measured ones, which are slower and enter no figure."""
        return self._trials(lambda trial: trial.kind == "warmup")

    @cached_property
    def instances(self) -> Records[InstanceRecord]:
        return Records(
            self._of.records.instances, lambda: self._table("instances", self._of.records)
        )

    @cached_property
    def quality(self) -> Records[QualityRecord]:
        return Records(self._of.records.quality, lambda: self._table("quality", self._of.records))

    @property
    def requests(self) -> ResultTable:
        """One row per request of `trials`; there may be millions, so they are no Python objects."""
        kept = replace(self._of.records, trials=tuple(self.trials))
        return ResultTable(lambda: self._table("requests", kept))

    @property
    def points(self) -> Records[PointSummary]:
        """Each config on each workload. As a table: one row per figure, with its interval."""
        return Records(self.summary.points, lambda: _figures(self.summary))

    def report(self) -> Path:
        """Write report/ and give the path of its page, index.html."""
        self._of.write()
        return self._of.page

    def _trials(self, is_wanted: Callable[[TrialRecord], bool]) -> Records[TrialRecord]:
        kept = replace(self._of.records, trials=tuple(filter(is_wanted, self._of.records.trials)))
        return Records(kept.trials, lambda: self._table("trials", kept))

    def _table(self, name: str, records: StudyRecords) -> "pa.Table":
        from bitbench.records.arrow_tables import study_arrow_table

        return study_arrow_table(records, name).drop_columns(
            ["folder", "study"]
        )  # the same in each row


def _figures(summary: StudySummary) -> "pa.Table":
    import pyarrow as pa

    rows: list[dict[str, Json]] = [
        {
            "variant": point.point.config.variant,
            "engine": point.point.config.engine,
            "workload": point.point.workload,
            "metric": name,
            "unit": summary.definitions[name].unit if name in summary.definitions else None,
            "mean": shown.value,
            "sd": estimate.basis.trial_sd if estimate.basis else None,
            "low": shown.low,
            "high": shown.high,
            "instances": estimate.basis.starts if estimate.basis else None,
            "trials": estimate.basis.trials if estimate.basis else None,
            "note": shown.note,
        }
        for point in summary.points
        for name, estimate in point.metrics.items()
        for shown in [_shown(name, point)]
    ]
    text, number, count = pa.string(), pa.float64(), pa.int64()
    kinds = {
        "mean": number,
        "sd": number,
        "low": number,
        "high": number,
        "instances": count,
        "trials": count,
    }
    names = ("variant", "engine", "workload", "metric", "unit", *kinds, "note")
    return pa.Table.from_pylist(
        rows, schema=pa.schema([(name, kinds.get(name, text)) for name in names])
    )


def _shown(name: str, point: PointSummary) -> Estimate:
    """Of the tail what the requests of all trials say, where they were kept; `high` is None where that is open."""
    known = find_metric(name)
    tail = point.tails.get(name) if known is not None and known.is_tail else None
    return point.metrics[name] if tail is None else tail


def study_text(of: StudyReport, form: str) -> str:
    """Return one of the `formats` of what a folder holds. Raises StoreError if it holds nothing to show."""
    match form:
        case (
            Form.HTML
        ):  # the page is made by the report itself, with its figures; this is a copy of it
            of.write()
            return of.page.read_text(encoding="utf-8")
        case Form.CSV:
            return csv_text(trial_rows(of.summary, of.records))
        case Form.JSON:
            return json_text(of.summary, trial_rows(of.summary, of.records))
    return str(offered("formats")[form].load()(of))

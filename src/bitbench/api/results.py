"""A study folder for work in Python: typed records, metrics with intervals, tables, and its
published formats as text."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import PointSummary, StudySummary
from bitbench.feature import collect_offers
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import InstanceRecord, Outcome, TrialRecord
from bitbench.reports.document.data import format_csv, format_json, list_trial_rows
from bitbench.reports.document.model import Block, Chart, Figure, Heading, Table
from bitbench.reports.formats import Form
from bitbench.reports.write import StudyReport
from bitbench.study.base import Json
from bitbench.study.metrics import find_metric
from bitbench.study.plan import Plan
from bitbench.study.study import Study
from bitbench.util.errors import StoreError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa


R = TypeVar("R")


class ResultTable:
    """A table whose rows are read on demand."""

    def __init__(self, read: "Callable[[], pa.Table]") -> None:
        self._read = read

    def to_arrow(self) -> "pa.Table":
        """Return a pyarrow.Table."""
        return self._read()

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame. Raise StoreError if pandas, a separate package, is missing."""
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


class Plot:
    """A chart of the report, which a notebook draws: as SVG with the extra `figures`, else in a
    frame."""

    def __init__(self, figure: Figure) -> None:
        self._figure = figure

    def __repr__(self) -> str:
        return f"<Plot {self._figure.name}: {self._figure.title}>"

    def _repr_svg_(self) -> str | None:
        from bitbench.reports.charts.svg import has_svg_renderer, render_svg

        return render_svg(self._figure) if has_svg_renderer() else None

    def _repr_html_(self) -> str | None:
        from bitbench.reports.charts.svg import has_svg_renderer
        from bitbench.reports.document.html import render_html_frame

        return None if has_svg_renderer() else render_html_frame(self._figure)


class Results:
    """The content of a study folder. Tables of records have the columns of `bitbench query`.

    A notebook cell shows the answer of the report and its first table.
    """

    def __init__(self, folder: StudyFolder, home: Path) -> None:
        self._of = StudyReport(folder, home)

    def __repr__(self) -> str:
        return f"<bitbench.Results of {self.study.name}: {len(self.trials)} trials in {self.path}>"

    def _repr_html_(self) -> str:
        from bitbench.reports.document.html import render_html_blocks

        document = self._of.document
        blocks: list[Block] = [Heading(document.title)]
        blocks += [block for block in document.answer if not isinstance(block, Chart)]
        for section in document.sections:
            tables = [block for block in section.blocks if isinstance(block, Table)]
            if tables:
                blocks.append(tables[0])
                break
        return render_html_blocks(blocks)

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
        """All numbers of the report: rankings, open questions, causes, and estimates with
        intervals."""
        return self._of.summary

    @cached_property
    def trials(self) -> Records[TrialRecord]:
        """The successful measured trials, which every mean is taken over."""
        return self._trials(lambda trial: trial.kind == "measured" and trial.outcome is Outcome.OK)

    @cached_property
    def excluded_trials(self) -> Records[TrialRecord]:
        """The measured trials that count in no metric, each with its outcome: failed or
        rejected."""
        return self._trials(
            lambda trial: trial.kind == "measured" and trial.outcome is not Outcome.OK
        )

    @cached_property
    def warmups(self) -> Records[TrialRecord]:
        """The trials before the measured ones, which are slower and count in no metric."""
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
        """A table of the requests of `trials`. There may be millions, so they are not Python
        objects."""
        records = replace(self._of.records, trials=tuple(self.trials))
        return ResultTable(lambda: self._table("requests", records))

    @property
    def points(self) -> Records[PointSummary]:
        """Each config on each workload. As a table: one row per metric, with its interval."""
        return Records(self.summary.points, lambda: _build_metric_table(self.summary))

    def plot(self, name: str) -> Plot:
        """Return a chart of the report, which a notebook cell draws.

        Args:
            name: The name of the chart, such as "answer-ratios".

        Returns:
            An object that draws itself.

        Raises:
            BitbenchError: The report has no chart of this name. The message lists the names.

        Example:
            bitbench.open("out").plot("answer-ratios")
        """
        from bitbench.reports.files import iter_figures

        figures = {figure.name: figure for figure in iter_figures(self._of.document)}
        if name not in figures:
            raise UsageError(f"no chart {name}; the charts are: {', '.join(figures) or 'none'}")
        return Plot(figures[name])

    def report(self) -> Path:
        """Write the folder report/, and return the path of its page, index.html."""
        self._of.write()
        return self._of.page

    def _trials(self, is_selected: Callable[[TrialRecord], bool]) -> Records[TrialRecord]:
        selected = tuple(filter(is_selected, self._of.records.trials))
        records = replace(self._of.records, trials=selected)
        return Records(selected, lambda: self._table("trials", records))

    def _table(self, name: str, records: StudyRecords) -> "pa.Table":
        from bitbench.records.arrow_tables import make_arrow_table

        # Folder and study are the same in each row.
        return make_arrow_table(records, name).drop_columns(["folder", "study"])


def _build_metric_table(summary: StudySummary) -> "pa.Table":
    """Return a table with a row per point and metric."""
    import pyarrow as pa

    rows: list[dict[str, Json]] = []
    for point in summary.points:
        for name, estimate in point.metrics.items():
            definition = summary.definitions.get(name)
            basis = estimate.basis
            interval = _get_interval(name, point)
            rows.append(
                {
                    "variant": point.point.config.variant,
                    "engine": point.point.config.engine,
                    "workload": point.point.workload,
                    "metric": name,
                    "unit": definition.unit if definition else None,
                    "mean": interval.value,
                    "sd": basis.trial_sd if basis else None,
                    "low": interval.low,
                    "high": interval.high,
                    "instances": basis.starts if basis else None,
                    "trials": basis.trials if basis else None,
                    "note": interval.note,
                }
            )
    number = pa.float64()
    count = pa.int64()
    types = {
        "mean": number,
        "sd": number,
        "low": number,
        "high": number,
        "instances": count,
        "trials": count,
    }
    names = ("variant", "engine", "workload", "metric", "unit", *types, "note")
    fields = [(name, types.get(name, pa.string())) for name in names]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


def _get_interval(name: str, point: PointSummary) -> Estimate:
    """Return a metric of a point. A percentile is over the requests of all trials if they were
    stored, and its `high` is None if that is open."""
    metric = find_metric(name)
    tail = point.tails.get(name) if metric is not None and metric.is_tail else None
    return point.metrics[name] if tail is None else tail


def format_study(report: StudyReport, form: str) -> str:
    """Return a study folder in one of the `formats`. Raise StoreError if it holds nothing to
    show."""
    match form:
        case Form.HTML:
            # The report writes the page with its charts, and this is a copy of it.
            report.write()
            return report.page.read_text(encoding="utf-8")
        case Form.CSV:
            return format_csv(list_trial_rows(report.summary, report.records))
        case Form.JSON:
            return format_json(report.summary, list_trial_rows(report.summary, report.records))
    return str(collect_offers("formats")[form].load()(report))

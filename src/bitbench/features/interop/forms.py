"""The forms of published benchmark records: `markdown-runs`, `markdown-backends`, `rst-by-length`.

The texts are in `templates/`, the tables are built here. One function per form escapes everything
that its template prints. `bitbench import --from published-table` reads these layouts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import MetricDefinition, PointSummary, Ranking, StudySummary
from bitbench.features.interop.rst import escape_rst, format_rst_grid_table, format_rst_heading
from bitbench.records.lock import HostFacts, Lock
from bitbench.records.trial import Outcome
from bitbench.reports.document.markdown import (
    render_markdown_phrase,
    render_markdown_section,
    render_markdown_table,
)
from bitbench.reports.document.model import Name, Phrase, Quantity, Table, Unit, format_plain_text
from bitbench.reports.document.numbers import (
    ROUGH,
    find_unit,
    format_cells_with_units,
    format_percent,
    format_plus_minus,
    format_quantity,
    format_starts_and_trials,
    make_quantity,
    make_spread,
    to_quantity,
)
from bitbench.reports.document.words import (
    MAX_NAME,
    ColumnOf,
    Item,
    Words,
    build_table,
    format_count,
    format_list,
    format_plain_words,
    list_names,
    make_number_column,
    make_words_column,
    say,
    strong,
)
from bitbench.reports.labels import group_by
from bitbench.reports.sections import ranked
from bitbench.reports.sections.conditions import build_host_section, describe_import_source
from bitbench.reports.sections.workloads import describe_workload
from bitbench.reports.write import StudyReport
from bitbench.study.plan import Config, Point
from bitbench.study.secrets import is_secret
from bitbench.study.study import EngineSetup
from bitbench.study.workload import ShapePart, Workload, format_length
from bitbench.util.units import UNKNOWN, show_bytes


def _render_template(
    template: str, format_phrase: Callable[[Phrase], str], report: StudyReport, **content: object
) -> str:
    """Return the filled template. `format_phrase` escapes everything that is not Markup yet."""

    def format_value(value: object) -> Markup:
        if isinstance(value, Markup):
            return value
        if isinstance(value, tuple):
            return Markup(format_phrase(value))
        if isinstance(value, Name | Quantity):
            return Markup(format_phrase((value,)))
        text = UNKNOWN if value is None else str(value)
        return Markup(format_phrase((format_plain_words(text),)))

    environment = Environment(
        loader=PackageLoader("bitbench.features.interop"),
        autoescape=True,
        finalize=format_value,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    text = environment.get_template(template).render(summary=report.summary, **content)
    return text.rstrip() + "\n"


PREFERRED = ("perplexity_rise", "kl_mean", "perplexity")  # keys of a config's quality estimates
ROUNDING = 1e-9  # rounding errors of equal values are smaller
DECIMALS = 2  # as in published records
FIGURES = {
    "Latency": ("latency_s", "s"),
    "Output Throughput": ("output_throughput", "tok/s"),
    "Overall Throughput": ("overall_throughput", "tok/s"),
    "Input Throughput": ("input_throughput", "tok/s"),
}


def markdown_runs(report: StudyReport) -> str:
    """Return the form `markdown-runs`: a section per workload, which lists every run."""
    host = Markup("\n\n".join(render_markdown_section(build_host_section(report.records.lock))))
    # The keyword arguments are the names that the template uses.
    return _render_markdown(
        "runs.md",
        report,
        _build_runs_table,
        figures=FIGURES,
        host=host,
        not_run=_list_refusals(report.summary),
        figure=_make_figure,
        mean=_format_mean_and_deviation,
        rank=ranked.format_rank,
        estimate=ranked.find_ranked_estimate,
        source=describe_import_source,
    )


def markdown_backends(report: StudyReport) -> str:
    """Return the form `markdown-backends`: a table per workload, with a column per config."""
    return _render_markdown("backends.md", report, _build_backends_table)


def _render_markdown(
    template: str,
    report: StudyReport,
    build_part_table: Callable[[StudySummary, Ranking, list[PointSummary]], Table],
    **content: object,
) -> str:
    """Return the filled Markdown template, with a part for each ranking of the study."""
    parts = []
    for part, ranking in ranked.iter_rankings(report.summary):
        parts.append((part, ranking, ranked.list_ranked_points(part, ranking)))
    return _render_template(
        template,
        render_markdown_phrase,
        report,
        parts=parts,
        table=lambda *part: Markup(render_markdown_table(build_part_table(*part))),
        name=Name,
        shape=describe_workload,
        **content,
    )


@dataclass(frozen=True)
class _Quality:
    """A quality metric and its estimates by config.

    It is the first metric that any config has, in the order of PREFERRED and then of the summary.
    """

    definition: MetricDefinition
    estimates: Mapping[Config, Estimate]

    @classmethod
    def of(cls, summary: StudySummary) -> "_Quality | None":
        """Return the quality metric of a summary, or None if no quality was measured."""
        for key in dict.fromkeys((*PREFERRED, *summary.quality_definitions)):
            estimates: dict[Config, Estimate] = {}
            for row in summary.quality:
                if key in row.estimates:
                    estimates[row.config] = row.estimates[key]
            if estimates:
                return cls(summary.quality_definitions[key], estimates)
        return None

    def find_quantity(self, config: Config) -> Quantity | None:
        return to_quantity(self.estimates.get(config), self.definition)


def _build_quality_column(
    summary: StudySummary, get_config: Callable[[Item], Config]
) -> ColumnOf[Item] | None:
    quality = _Quality.of(summary)
    if quality is None:
        return None
    unit = find_unit(quality.definition)
    return make_number_column(
        quality.definition.label, unit, lambda item: quality.find_quantity(get_config(item))
    )


def _build_runs_table(summary: StudySummary, ranking: Ranking, points: list[PointSummary]) -> Table:
    memory = ranked.find_memory_metric(summary)
    definition = summary.definitions[ranking.metric]
    interval = f"{definition.label}, {format_percent(summary.study.measure.confidence)} interval"

    def get_config(point: PointSummary) -> Config:
        return point.point.config

    def describe_runs(point: PointSummary) -> Phrase:
        if ranked.has_ranked_result(summary, point):
            return say(str(sum(run.outcome is Outcome.OK for run in point.runs)))
        return say(ranked.format_outcomes(point) or "not run")

    def find_peak(point: PointSummary) -> float | None:
        estimate = point.metrics.get(memory)
        return estimate.value if estimate else None

    def find_interval(point: PointSummary) -> Quantity | None:
        quantity = to_quantity(point.metrics.get(ranking.metric), definition)
        if quantity is None:
            return None
        return replace(quantity, sd=None)  # the deviation has its own column

    def make_column(title: str) -> ColumnOf[PointSummary]:
        metric, unit = FIGURES[title]
        return make_number_column(
            title, unit, lambda point: _format_mean_and_deviation(point.metrics.get(metric))
        )

    quality = _build_quality_column(summary, get_config)
    if quality is None:
        quality = make_number_column("Quality", Unit.NONE, lambda _: None)
    return build_table(
        points,
        make_words_column(
            "Rank",
            lambda point: ranked.format_rank(ranked.find_ranked_entry(ranking, get_config(point))),
        ),
        make_words_column("Model", lambda point: Name(get_config(point).name)),
        make_number_column("Runs", Unit.NONE, describe_runs),
        *map(make_column, FIGURES),
        make_number_column(interval, find_unit(definition), find_interval),
        make_number_column("Memory peak", Unit.BYTES, find_peak),
        quality,
    )


def _format_mean_and_deviation(estimate: Estimate | None) -> Phrase | None:
    if estimate is None:
        return None
    mean = _make_figure(estimate.value)
    sd = estimate.basis.trial_sd if estimate.basis else None
    if sd is None:
        return format_plus_minus(mean, None)
    return format_plus_minus(mean, _make_figure(sd))


def _make_figure(value: float) -> Quantity:
    """Return a value without a unit: two decimals, or three digits if it is below 1.

    The unit is in the title or behind the value.
    """
    if abs(value) < ROUNDING:
        return Quantity(0.0, decimals=0)
    return Quantity(value, decimals=DECIMALS) if abs(value) >= 1 else Quantity(value, digits=ROUGH)


def _list_refusals(summary: StudySummary) -> list[Phrase]:
    """Return each reason once, with the configs that could not run because of it."""
    phrases = []
    for reason, refusals in group_by(summary.refusals, lambda refusal: refusal.reason).items():
        names = dict.fromkeys(refusal.point.config.name for refusal in refusals)
        phrases.append(say(format_list(list_names(names)), f": {format_plain_words(reason)}"))
    return phrases


def _build_backends_table(
    summary: StudySummary, ranking: Ranking, points: list[PointSummary]
) -> Table:
    """Return a table with a column per point and a row per fact."""

    def make_column(index: int) -> ColumnOf[tuple[str, list[Words]]]:
        return make_words_column(
            format_plain_words(points[index].point.config.engine, MAX_NAME),
            lambda fact: fact[1][index],
        )

    return build_table(
        _iter_facts(summary, ranking, points),
        make_words_column(strong("Backend"), lambda fact: strong(fact[0])),
        *map(make_column, range(len(points))),
    )


def _iter_facts(
    summary: StudySummary, ranking: Ranking, points: Sequence[PointSummary]
) -> Iterator[tuple[str, list[Words]]]:
    """Yield the title and the cells of each row, one cell per point."""
    by_config = {row.config: row for row in summary.configs}
    configs = [point.point.config for point in points]
    entries = [ranked.find_ranked_entry(ranking, config) for config in configs]

    def list_texts(field: str) -> list[Words]:
        cells: list[Words] = []
        for config in configs:
            texts = getattr(by_config.get(config), field, ())
            cells.append("; ".join(format_plain_words(text, MAX_NAME) for text in texts) or None)
        return cells

    def list_quantities(metric: str) -> list[Words]:
        definition = summary.definitions[metric]
        return [to_quantity(point.metrics.get(metric), definition) for point in points]

    yield "Model", [format_plain_words(config.variant, MAX_NAME) for config in configs]
    yield "Version", list_texts("engine_versions")
    yield "Kernel", list_texts("kernels")
    yield "TTFT", list_quantities("ttft_s")
    yield "TPOT", list_quantities("tpot_s")
    ready: list[Words] = []
    for config in configs:
        time = by_config[config].ready_s if config in by_config else None
        ready.append(make_spread(time, Unit.SECONDS))
    yield "Start to ready", ready
    memory = ranked.find_memory_metric(summary)
    yield "Memory peak", [make_spread(point.metrics.get(memory), Unit.BYTES) for point in points]
    quality = _Quality.of(summary)
    if quality is not None:
        title = f"Quality: {quality.definition.name}"
        yield title, [quality.find_quantity(config) for config in configs]
    times = [point.metrics.get("ttft_s") or point.metrics.get("tpot_s") for point in points]
    yield "Starts / trials", [_format_starts(time) for time in times]
    title = f"Rank by {summary.definitions[ranking.metric].name}"
    yield title, [ranked.format_rank(entry) for entry in entries]
    if ranking.baseline is not None:
        yield "Speed-up", [ranked.format_versus_baseline(ranking, entry) for entry in entries]
    if any(point.failures for point in points):
        yield "Failed", [ranked.format_outcomes(point) or "no" for point in points]


def _format_starts(estimate: Estimate | None) -> str | None:
    return format_starts_and_trials(estimate) if estimate else None


# Names of the argument with the number of devices, in engines and in imported tables.
DEVICE_COUNTS = ("gpus", "tensor-parallel-size", "tensor_parallel_size")
MAX_CAUSE = 120
MAX_SETTINGS = 120
MERGED = 2  # leading columns in which a repeated value is written once


@dataclass(frozen=True)
class _Row:
    """A requested point."""

    point: Point
    workload: Workload
    setup: EngineSetup
    measured: PointSummary | None
    reason: str  # why it has no results, or an empty text

    def estimate(self, metric: str) -> Estimate | None:
        return self.measured.metrics.get(metric) if self.measured else None

    def known(self, part: ShapePart, value: str) -> str:
        """Return the value, or UNKNOWN if the workload does not know this part of its shape."""
        return UNKNOWN if part in self.workload.unknown else value

    @property
    def model(self) -> str:
        model, _, quantization = self.point.config.variant.rpartition("/")
        return model or quantization

    @property
    def title(self) -> str:
        """The title of its table: a model on an engine at one batch size and output length."""
        size = UNKNOWN
        if not self.workload.open_loop:
            size = self.known("concurrency", str(self.workload.concurrency))
        tokens = self.known("output_tokens", format_length(self.workload.output_tokens))
        return f"{self.model} ({self.setup.engine}), batch size {size}, {tokens} tokens generated"


def rst_by_length(report: StudyReport) -> str:
    """Return the form `rst-by-length`: tables of speed and memory, sorted by input length.

    Each table has one model on one engine. A point that did not run has a row with the reason.
    """
    summary = report.summary
    lock = report.records.lock

    def render_table(rows: Sequence[_Row]) -> Markup:
        titles, cells = format_cells_with_units(
            _build_speed_table(summary, lock, rows), _format_rst
        )
        return Markup(format_rst_grid_table(titles, cells, merged=MERGED))

    # The keyword arguments are the names that the template uses.
    return _render_template(
        "by_length.rst",
        _format_rst,
        report,
        heading=lambda mark, *parts: Markup(format_rst_heading(_format_rst(say(*parts)), mark)),
        facts=[*_iter_machine_facts(lock.host), *dict.fromkeys(_iter_versions(summary))],
        confidence=format_percent(summary.study.measure.confidence),
        groups=group_by(_list_rows(summary), lambda row: row.title),
        table=render_table,
    )


def _format_rst(phrase: Phrase) -> str:
    """Return a phrase as escaped reStructuredText."""
    texts = []
    for part in phrase:
        if isinstance(part, Quantity):
            texts.append(format_quantity(part))
        else:
            texts.append(format_plain_text((part,)))
    return escape_rst("".join(texts))


def _iter_versions(summary: StudySummary) -> Iterator[str]:
    for row in summary.configs:
        for version in row.engine_versions:
            yield f"{summary.study.engine(row.config.engine).engine} {version}"


def _iter_machine_facts(host: HostFacts) -> Iterator[str]:
    """Yield the accelerators, the processor and the memory of a host."""
    for accelerator in host.accelerators:
        yield accelerator.name
    if host.cpu_model:
        cores = f", {host.cores} cores" if host.cores else ""
        yield f"{host.cpu_model}{cores}"
    elif not host.accelerators:
        yield f"machine: {UNKNOWN}"
    if host.memory_bytes:
        yield f"{show_bytes(host.memory_bytes)} of memory"


def _list_rows(summary: StudySummary) -> list[_Row]:
    """Return all requested points, sorted by input length and then in the order of the study."""
    measured = {point.point: point for point in summary.points}
    reasons = {
        point: _describe_missing_figures(measurement) for point, measurement in measured.items()
    }
    for refusal in summary.refusals:
        word = "not made" if refusal.was_tried else "refused"
        reasons.setdefault(refusal.point, f"{word}: {refusal.reason}")
    rows = []
    ranks: dict[Config, int] = {}
    for point, reason in reasons.items():
        workload = summary.study.workload(point.workload)
        setup = summary.study.engine(point.config.engine)
        rows.append(_Row(point, workload, setup, measured.get(point), reason))
        ranks.setdefault(point.config, len(ranks))

    def get_key(row: _Row) -> tuple[float, int]:
        tokens = row.workload.input_tokens
        length = tokens if isinstance(tokens, int) else float("inf")
        return length, ranks[row.point.config]

    return sorted(rows, key=get_key)


def _describe_missing_figures(point: PointSummary) -> str:
    """Return why a point has no throughput, or an empty text if it has one."""
    if "output_throughput" in point.metrics:
        return ""
    if not point.failures:
        return "not run"
    return f"{ranked.format_outcomes(point)}: {point.failures[0].failure.cause}"


def _build_speed_table(summary: StudySummary, lock: Lock, rows: Sequence[_Row]) -> Table:
    memory = ranked.find_memory_metric(summary)
    memory_title = "Device memory" if memory.startswith("device") else "Host memory"
    columns = [
        make_words_column("Model", lambda row: row.model),
        make_words_column(
            "Input Length",
            lambda row: row.known("input_tokens", format_length(row.workload.input_tokens)),
        ),
        make_words_column("Quantization", lambda row: row.point.config.variant.rpartition("/")[2]),
        make_words_column("Devices", lambda row: _format_devices(row.setup, lock)),
        make_number_column("Speed", "tokens/s", _find_speed),
    ]
    if any(row.workload.open_loop or row.workload.concurrency > 1 for row in rows):
        columns.append(_make_mean_column("Requests/s", "request_throughput"))
        columns.append(_make_mean_column("All tokens/s", "overall_throughput"))
    columns.append(_make_mean_column(memory_title, memory, "GB", 1e9))
    quality: ColumnOf[_Row] | None = _build_quality_column(summary, lambda row: row.point.config)
    if quality is not None:
        columns.append(quality)
    return build_table(
        rows,
        *columns,
        make_words_column("n", lambda row: _format_starts(row.estimate("output_throughput"))),
        make_words_column(
            "Settings",
            lambda row: format_plain_words(_describe_settings(summary, row.setup), MAX_SETTINGS),
        ),
        make_words_column(
            "Note",
            lambda row: format_plain_words(
                row.reason or _describe_remarks(row.measured), MAX_CAUSE
            ),
        ),
    )


def _make_mean_column(
    title: str, metric: str, unit: str = Unit.NONE, factor: float = 1.0
) -> ColumnOf[_Row]:
    """Return a column of the means of a metric, divided by `factor`."""

    def find_mean(row: _Row) -> float | None:
        estimate = row.estimate(metric)
        return estimate.value / factor if estimate else None

    return make_number_column(title, unit, find_mean, decimals=DECIMALS)


def _find_speed(row: _Row) -> Quantity | None:
    speed = make_quantity(row.estimate("output_throughput"), "tokens/s")
    return None if speed is None else replace(speed, decimals=DECIMALS)


def _format_devices(setup: EngineSetup, lock: Lock) -> str | None:
    """Return the number of devices in the arguments, else 1 if the host has accelerators, else CPU.

    Return None if the host is unknown.
    """
    for name in DEVICE_COUNTS:
        if name in setup.args:
            return str(setup.args[name])
    if lock.host.accelerators:
        return "1"
    return "CPU" if lock.host.cpu_model else None


def _describe_settings(summary: StudySummary, setup: EngineSetup) -> str:
    """Return the settings and variables of a setup, without the values of secrets."""
    texts = []
    for name, value in {**setup.settings, **setup.env}.items():
        if name not in DEVICE_COUNTS:
            visible = "•••" if is_secret(name) else value
            texts.append(f"{name}={visible}")
    text = " ".join(texts) or "default"
    if setup.name != setup.engine and summary.imported_from is None:
        return f"{setup.name}: {text}"
    return text


def _describe_remarks(measured: PointSummary | None) -> str:
    """Return a note on the outliers and failures of a measured point, or an empty text."""
    if measured is None:
        return ""
    notes = []
    outlier_ids = {outlier.trial_id for outlier in measured.outliers}
    if outlier_ids:
        notes.append(f"{format_count(len(outlier_ids), 'outlier')} flagged")
    failed = ranked.format_outcomes(measured)
    if failed:
        notes.append(f"besides: {failed}")
    return "; ".join(notes)

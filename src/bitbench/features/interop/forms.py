"""The forms in which others publish benchmark records: `markdown-runs`, `markdown-backends` and `rst-by-length`.

The texts are in `templates/`; the tables are made here. Whatever a template prints is escaped by the one writer of its
form. What `bitbench import --from published-table` reads keeps its layout.
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


def _written(
    template: str, phrase: Callable[[Phrase], str], of: StudyReport, **content: object
) -> str:
    """The template with all that it prints as `phrase` writes it; text in Markup is written already."""

    def finished(value: object) -> Markup:
        if isinstance(value, Markup):
            return value
        if isinstance(value, tuple):
            return Markup(phrase(value))
        if isinstance(value, Name | Quantity):
            return Markup(phrase((value,)))
        return Markup(phrase((format_plain_words(UNKNOWN if value is None else str(value)),)))

    loader = PackageLoader("bitbench.features.interop")
    environment = Environment(
        loader=loader,
        autoescape=True,
        finalize=finished,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template(template).render(summary=of.summary, **content).rstrip() + "\n"


PREFERRED = ("perplexity_rise", "kl_mean", "perplexity")  # keys of a config's quality estimates
ROUNDING = 1e-9  # what rounding leaves of equal values is below this
DECIMALS = 2  # as in such records
FIGURES = {
    "Latency": ("latency_s", "s"),
    "Output Throughput": ("output_throughput", "tok/s"),
    "Overall Throughput": ("overall_throughput", "tok/s"),
    "Input Throughput": ("input_throughput", "tok/s"),
}


def markdown_runs(of: StudyReport) -> str:
    """Runs by configuration: a section for each, with every run in it."""
    functions = {
        "figure": _figure,
        "mean": _mean_and_deviation,
        "rank": ranked.format_rank,
        "estimate": ranked.find_ranked_estimate,
        "source": describe_import_source,
    }
    host = Markup("\n\n".join(render_markdown_section(build_host_section(of.records.lock))))
    return _markdown(
        "runs.md",
        of,
        _runs_table,
        figures=FIGURES,
        host=host,
        not_run=_not_run(of.summary),
        **functions,
    )


def markdown_backends(of: StudyReport) -> str:
    """A column for each config: its version, its kernel, its times."""
    return _markdown("backends.md", of, _backends_table)


def _markdown(
    template: str,
    of: StudyReport,
    table: Callable[[StudySummary, Ranking, list[PointSummary]], Table],
    **content: object,
) -> str:
    parts = [
        (part, ranking, ranked.list_ranked_points(part, ranking))
        for part, ranking in ranked.iter_rankings(of.summary)
    ]
    return _written(
        template,
        render_markdown_phrase,
        of,
        parts=parts,
        table=lambda *part: Markup(render_markdown_table(table(*part))),
        name=Name,
        shape=describe_workload,
        **content,
    )


@dataclass(frozen=True)
class _Quality:
    """The first of PREFERRED, or of what else was measured, that any config has."""

    definition: MetricDefinition
    estimates: Mapping[Config, Estimate]

    @classmethod
    def of(cls, summary: StudySummary) -> "_Quality | None":
        for key in dict.fromkeys((*PREFERRED, *summary.quality_definitions)):
            known = {
                row.config: row.estimates[key] for row in summary.quality if key in row.estimates
            }
            if known:
                return cls(summary.quality_definitions[key], known)
        return None

    def quantity(self, config: Config) -> Quantity | None:
        return to_quantity(self.estimates.get(config), self.definition)


def _quality_column(
    summary: StudySummary, config_of: Callable[[Item], Config]
) -> ColumnOf[Item] | None:
    quality = _Quality.of(summary)
    if quality is None:
        return None
    unit = find_unit(quality.definition)
    return make_number_column(
        quality.definition.label, unit, lambda item: quality.quantity(config_of(item))
    )


def _runs_table(summary: StudySummary, ranking: Ranking, points: list[PointSummary]) -> Table:
    memory, definition = ranked.find_memory_metric(summary), summary.definitions[ranking.metric]
    interval = f"{definition.label}, {format_percent(summary.study.measure.confidence)} interval"

    def config(point: PointSummary) -> Config:
        return point.point.config

    def runs(point: PointSummary) -> Phrase:
        counted = sum(run.outcome is Outcome.OK for run in point.runs)
        has_result = ranked.has_ranked_result(summary, point)
        return say(str(counted) if has_result else ranked.format_outcomes(point) or "not run")

    def peak(point: PointSummary) -> float | None:
        estimate = point.metrics.get(memory)
        return estimate.value if estimate else None

    def interval_of(point: PointSummary) -> Quantity | None:
        known = to_quantity(point.metrics.get(ranking.metric), definition)
        return (
            None if known is None else replace(known, sd=None)
        )  # the deviation has a column of its own

    def column(title: str) -> ColumnOf[PointSummary]:
        metric, unit = FIGURES[title]
        return make_number_column(
            title, unit, lambda point: _mean_and_deviation(point.metrics.get(metric))
        )

    return build_table(
        points,
        make_words_column(
            "Rank",
            lambda point: ranked.format_rank(ranked.find_ranked_entry(ranking, config(point))),
        ),
        make_words_column("Model", lambda point: Name(config(point).name)),
        make_number_column("Runs", Unit.NONE, runs),
        *map(column, FIGURES),
        make_number_column(interval, find_unit(definition), interval_of),
        make_number_column("Memory peak", Unit.BYTES, peak),
        _quality_column(summary, config)
        or make_number_column("Quality", Unit.NONE, lambda _: None),
    )


def _mean_and_deviation(estimate: Estimate | None) -> Phrase | None:
    if estimate is None:
        return None
    sd = estimate.basis.trial_sd if estimate.basis else None
    return format_plus_minus(_figure(estimate.value), None if sd is None else _figure(sd))


def _figure(value: float) -> Quantity:
    """Two decimals, as in such records; small ones with three digits. The unit stands in the title, or behind it."""
    if abs(value) < ROUNDING:
        return Quantity(0.0, decimals=0)
    return Quantity(value, decimals=DECIMALS) if abs(value) >= 1 else Quantity(value, digits=ROUGH)


def _not_run(summary: StudySummary) -> list[Phrase]:
    """The reasons, each once, with the configs that they keep from running."""
    reasons = group_by(summary.refusals, lambda refusal: refusal.reason)
    return [
        say(
            format_list(list_names(dict.fromkeys(refusal.point.config.name for refusal in alike))),
            f": {format_plain_words(reason)}",
        )
        for reason, alike in reasons.items()
    ]


def _backends_table(summary: StudySummary, ranking: Ranking, points: list[PointSummary]) -> Table:
    """A column per point, a row per fact."""

    def column(place: int) -> ColumnOf[tuple[str, list[Words]]]:
        return make_words_column(
            format_plain_words(points[place].point.config.engine, MAX_NAME),
            lambda fact: fact[1][place],
        )

    return build_table(
        _facts(summary, ranking, points),
        make_words_column(strong("Backend"), lambda fact: strong(fact[0])),
        *map(column, range(len(points))),
    )


def _facts(
    summary: StudySummary, ranking: Ranking, points: Sequence[PointSummary]
) -> Iterator[tuple[str, list[Words]]]:
    known = {config.config: config for config in summary.configs}
    configs = [point.point.config for point in points]

    def texts(field: str) -> list[Words]:
        found = (getattr(known.get(config), field, ()) for config in configs)
        return [
            "; ".join(format_plain_words(text, MAX_NAME) for text in every) or None
            for every in found
        ]

    yield "Model", [format_plain_words(config.variant, MAX_NAME) for config in configs]
    yield "Version", texts("engine_versions")
    yield "Kernel", texts("kernels")
    for title, metric in (("TTFT", "ttft_s"), ("TPOT", "tpot_s")):
        yield (
            title,
            [
                to_quantity(point.metrics.get(metric), summary.definitions[metric])
                for point in points
            ],
        )
    ready = [known[config].ready_s if config in known else None for config in configs]
    yield "Start to ready", [make_spread(time, Unit.SECONDS) for time in ready]
    memory = ranked.find_memory_metric(summary)
    yield (
        "Memory peak",
        [make_spread(point.metrics.get(memory), Unit.BYTES) for point in points],
    )
    quality = _Quality.of(summary)
    if quality is not None:
        yield (
            f"Quality: {quality.definition.name}",
            [quality.quantity(config) for config in configs],
        )
    times = [point.metrics.get("ttft_s") or point.metrics.get("tpot_s") for point in points]
    yield "Starts / trials", [format_starts_and_trials(time) if time else None for time in times]
    places = [ranked.format_rank(ranked.find_ranked_entry(ranking, config)) for config in configs]
    yield f"Rank by {summary.definitions[ranking.metric].name}", list(places)
    if ranking.baseline is not None:
        yield (
            "Speed-up",
            [
                ranked.format_versus_baseline(ranking, ranked.find_ranked_entry(ranking, config))
                for config in configs
            ],
        )
    if any(point.failures for point in points):
        yield "Failed", [ranked.format_outcomes(point) or "no" for point in points]


DEVICE_COUNTS = (
    "gpus",
    "tensor-parallel-size",
    "tensor_parallel_size",
)  # how engines spell it, and imported tables
MAX_CAUSE = 120
MAX_SETTINGS = 120
MERGED = 2  # columns of which a value that repeats is written once


@dataclass(frozen=True)
class _Row:
    """A point that was asked for."""

    point: Point
    workload: Workload
    setup: EngineSetup
    measured: PointSummary | None
    reason: str  # why it has no figures

    def estimate(self, metric: str) -> Estimate | None:
        return self.measured.metrics.get(metric) if self.measured else None

    def known(self, part: ShapePart, value: str) -> str:
        """UNKNOWN where the workload does not know this part of its shape."""
        return UNKNOWN if part in self.workload.unknown else value

    @property
    def model(self) -> str:
        model, _, quantization = self.point.config.variant.rpartition("/")
        return model or quantization

    @property
    def title(self) -> str:
        """That of its table: a model on an engine at one batch size and output length."""
        size = (
            UNKNOWN
            if self.workload.open_loop
            else self.known("concurrency", str(self.workload.concurrency))
        )
        tokens = self.known("output_tokens", format_length(self.workload.output_tokens))
        return f"{self.model} ({self.setup.engine}), batch size {size}, {tokens} tokens generated"


def rst_by_length(of: StudyReport) -> str:
    """Speed and memory by model and engine. A point that did not run has its row and its reason."""
    summary, lock = of.summary, of.records.lock
    versions = dict.fromkeys(
        f"{summary.study.engine(config.config.engine).engine} {version}"
        for config in summary.configs
        for version in config.engine_versions
    )

    def grid(rows: Sequence[_Row]) -> Markup:
        titles, cells = format_cells_with_units(_speed_table(summary, lock, rows), _rst)
        return Markup(format_rst_grid_table(titles, cells, merged=MERGED))

    return _written(
        "by_length.rst",
        _rst,
        of,
        heading=lambda mark, *parts: Markup(format_rst_heading(_rst(say(*parts)), mark)),
        facts=[*_machine(lock.host), *versions],
        confidence=format_percent(summary.study.measure.confidence),
        groups=group_by(_rows(summary), lambda row: row.title),
        table=grid,
    )


def _rst(phrase: Phrase) -> str:
    return escape_rst(
        "".join(
            format_quantity(part) if isinstance(part, Quantity) else format_plain_text((part,))
            for part in phrase
        )
    )


def _machine(host: HostFacts) -> Iterator[str]:
    yield from (accelerator.name for accelerator in host.accelerators)
    if host.cpu_model:
        yield f"{host.cpu_model}{f', {host.cores} cores' if host.cores else ''}"
    elif not host.accelerators:
        yield f"machine: {UNKNOWN}"
    if host.memory_bytes:
        yield f"{show_bytes(host.memory_bytes)} of memory"


def _rows(summary: StudySummary) -> list[_Row]:
    """All points that were asked for, by input length and then in the order of the study."""
    measured = {point.point: point for point in summary.points}
    reasons = {
        point: "" if "output_throughput" in measurement.metrics else _why_not(measurement)
        for point, measurement in measured.items()
    }
    for refusal in summary.refusals:
        word = "not made" if refusal.was_tried else "refused"
        reasons.setdefault(refusal.point, f"{word}: {refusal.reason}")
    rows = [
        _Row(
            point,
            summary.study.workload(point.workload),
            summary.study.engine(point.config.engine),
            measured.get(point),
            reason,
        )
        for point, reason in reasons.items()
    ]
    order = {
        config: place
        for place, config in reversed(list(enumerate(row.point.config for row in rows)))
    }

    def place(row: _Row) -> tuple[float, int]:
        tokens = row.workload.input_tokens
        return tokens if isinstance(tokens, int) else float("inf"), order[row.point.config]

    return sorted(rows, key=place)


def _why_not(point: PointSummary) -> str:
    if not point.failures:
        return "not run"
    return f"{ranked.format_outcomes(point)}: {point.failures[0].failure.cause}"


def _speed_table(summary: StudySummary, lock: Lock, rows: Sequence[_Row]) -> Table:
    memory = ranked.find_memory_metric(summary)
    where = "Device" if memory.startswith("device") else "Host"
    columns = [
        make_words_column("Model", lambda row: row.model),
        make_words_column(
            "Input Length",
            lambda row: row.known("input_tokens", format_length(row.workload.input_tokens)),
        ),
        make_words_column("Quantization", lambda row: row.point.config.variant.rpartition("/")[2]),
        make_words_column("Devices", lambda row: _devices(row.setup, lock)),
        make_number_column("Speed", "tokens/s", _speed),
    ]
    if any(row.workload.open_loop or row.workload.concurrency > 1 for row in rows):
        columns += [
            _mean("Requests/s", "request_throughput"),
            _mean("All tokens/s", "overall_throughput"),
        ]
    columns.append(_mean(f"{where} memory", memory, "GB", 1e9))
    quality: ColumnOf[_Row] | None = _quality_column(summary, lambda row: row.point.config)
    if quality is not None:
        columns.append(quality)
    return build_table(
        rows,
        *columns,
        make_words_column(
            "n",
            lambda row: (
                format_starts_and_trials(speed)
                if (speed := row.estimate("output_throughput"))
                else None
            ),
        ),
        make_words_column(
            "Settings", lambda row: format_plain_words(_settings(summary, row.setup), MAX_SETTINGS)
        ),
        make_words_column(
            "Note", lambda row: format_plain_words(row.reason or _remarks(row.measured), MAX_CAUSE)
        ),
    )


def _mean(title: str, metric: str, unit: str = Unit.NONE, factor: float = 1.0) -> ColumnOf[_Row]:
    def figure(row: _Row) -> float | None:
        estimate = row.estimate(metric)
        return estimate.value / factor if estimate else None

    return make_number_column(title, unit, figure, decimals=DECIMALS)


def _speed(row: _Row) -> Quantity | None:
    known = make_quantity(row.estimate("output_throughput"), "tokens/s")
    return None if known is None else replace(known, decimals=DECIMALS)


def _devices(setup: EngineSetup, lock: Lock) -> str | None:
    """As many as its arguments say; one where the machine has some; else the processor."""
    counts = [str(setup.args[name]) for name in DEVICE_COUNTS if name in setup.args]
    if counts or lock.host.accelerators:
        return counts[0] if counts else "1"
    return "CPU" if lock.host.cpu_model else None


def _settings(summary: StudySummary, setup: EngineSetup) -> str:
    chosen = {
        name: value
        for name, value in {**setup.settings, **setup.env}.items()
        if name not in DEVICE_COUNTS
    }
    texts = [f"{name}={'•••' if is_secret(name) else value}" for name, value in chosen.items()]
    is_named = setup.name != setup.engine and summary.imported_from is None
    return f"{f'{setup.name}: ' if is_named else ''}{' '.join(texts) or 'default'}"


def _remarks(measured: PointSummary | None) -> str:
    """Of a point with figures."""
    if measured is None:
        return ""
    flagged = {outlier.trial_id for outlier in measured.outliers}
    failed = ranked.format_outcomes(measured)
    notes = [
        f"{format_count(len(flagged), 'outlier')} flagged" if flagged else "",
        f"besides: {failed}" if failed else "",
    ]
    return "; ".join(filter(None, notes))

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
from bitbench.features.interop.rst import escape_rst, rst_grid_table, rst_heading
from bitbench.records.lock import HostFacts, Lock
from bitbench.records.trial import Outcome
from bitbench.reports.document.markdown import (
    markdown_phrase,
    markdown_section_parts,
    markdown_table,
)
from bitbench.reports.document.model import Name, Phrase, Quantity, Table, Unit, plain_text
from bitbench.reports.document.numbers import (
    ROUGH,
    cells_with_units,
    estimated,
    percent,
    plus_minus,
    quantity,
    quantity_unit,
    shown,
    spread_quantity,
    starts_and_trials,
)
from bitbench.reports.document.words import (
    MAX_NAME,
    ColumnOf,
    Item,
    Words,
    listing,
    name_phrases,
    number_column,
    plain_words,
    plural,
    say,
    strong,
    table,
    words_column,
)
from bitbench.reports.labels import grouped
from bitbench.reports.sections import ranked
from bitbench.reports.sections.conditions import conditions_source_phrase, host_section
from bitbench.reports.sections.workloads import workload_shape
from bitbench.reports.write import StudyReport
from bitbench.study.plan import Config, Point
from bitbench.study.secrets import is_secret
from bitbench.study.study import EngineSetup
from bitbench.study.workload import ShapePart, Workload, workload_length_text
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
        return Markup(phrase((plain_words(UNKNOWN if value is None else str(value)),)))

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
        "rank": ranked.rank_text,
        "estimate": ranked.ranked_estimate,
        "source": conditions_source_phrase,
    }
    host = Markup("\n\n".join(markdown_section_parts(host_section(of.records.lock))))
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
        (part, ranking, ranked.ranked_points(part, ranking))
        for part, ranking in ranked.ranked_parts_by_model(of.summary)
    ]
    return _written(
        template,
        markdown_phrase,
        of,
        parts=parts,
        table=lambda *part: Markup(markdown_table(table(*part))),
        name=Name,
        shape=workload_shape,
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
        return estimated(self.estimates.get(config), self.definition)


def _quality_column(
    summary: StudySummary, config_of: Callable[[Item], Config]
) -> ColumnOf[Item] | None:
    quality = _Quality.of(summary)
    if quality is None:
        return None
    unit = quantity_unit(quality.definition)
    return number_column(
        quality.definition.label, unit, lambda item: quality.quantity(config_of(item))
    )


def _runs_table(summary: StudySummary, ranking: Ranking, points: list[PointSummary]) -> Table:
    memory, definition = ranked.ranked_memory_metric(summary), summary.definitions[ranking.metric]
    interval = f"{definition.label}, {percent(summary.study.measure.confidence)} interval"

    def config(point: PointSummary) -> Config:
        return point.point.config

    def runs(point: PointSummary) -> Phrase:
        counted = sum(run.outcome is Outcome.OK for run in point.runs)
        has_result = ranked.has_ranked_result(summary, point)
        return say(str(counted) if has_result else ranked.ranked_point_outcomes(point) or "not run")

    def peak(point: PointSummary) -> float | None:
        estimate = point.metrics.get(memory)
        return estimate.value if estimate else None

    def interval_of(point: PointSummary) -> Quantity | None:
        known = estimated(point.metrics.get(ranking.metric), definition)
        return (
            None if known is None else replace(known, sd=None)
        )  # the deviation has a column of its own

    def column(title: str) -> ColumnOf[PointSummary]:
        metric, unit = FIGURES[title]
        return number_column(
            title, unit, lambda point: _mean_and_deviation(point.metrics.get(metric))
        )

    return table(
        points,
        words_column(
            "Rank", lambda point: ranked.rank_text(ranked.ranked_entry(ranking, config(point)))
        ),
        words_column("Model", lambda point: Name(config(point).name)),
        number_column("Runs", Unit.NONE, runs),
        *map(column, FIGURES),
        number_column(interval, quantity_unit(definition), interval_of),
        number_column("Memory peak", Unit.BYTES, peak),
        _quality_column(summary, config) or number_column("Quality", Unit.NONE, lambda _: None),
    )


def _mean_and_deviation(estimate: Estimate | None) -> Phrase | None:
    if estimate is None:
        return None
    sd = estimate.basis.trial_sd if estimate.basis else None
    return plus_minus(_figure(estimate.value), None if sd is None else _figure(sd))


def _figure(value: float) -> Quantity:
    """Two decimals, as in such records; small ones with three digits. The unit stands in the title, or behind it."""
    if abs(value) < ROUNDING:
        return Quantity(0.0, decimals=0)
    return Quantity(value, decimals=DECIMALS) if abs(value) >= 1 else Quantity(value, digits=ROUGH)


def _not_run(summary: StudySummary) -> list[Phrase]:
    """The reasons, each once, with the configs that they keep from running."""
    reasons = grouped(summary.refusals, lambda refusal: refusal.reason)
    return [
        say(
            listing(name_phrases(dict.fromkeys(refusal.point.config.name for refusal in alike))),
            f": {plain_words(reason)}",
        )
        for reason, alike in reasons.items()
    ]


def _backends_table(summary: StudySummary, ranking: Ranking, points: list[PointSummary]) -> Table:
    """A column per point, a row per fact."""

    def column(place: int) -> ColumnOf[tuple[str, list[Words]]]:
        return words_column(
            plain_words(points[place].point.config.engine, MAX_NAME), lambda fact: fact[1][place]
        )

    return table(
        _facts(summary, ranking, points),
        words_column(strong("Backend"), lambda fact: strong(fact[0])),
        *map(column, range(len(points))),
    )


def _facts(
    summary: StudySummary, ranking: Ranking, points: Sequence[PointSummary]
) -> Iterator[tuple[str, list[Words]]]:
    known = {config.config: config for config in summary.configs}
    configs = [point.point.config for point in points]

    def texts(field: str) -> list[Words]:
        found = (getattr(known.get(config), field, ()) for config in configs)
        return ["; ".join(plain_words(text, MAX_NAME) for text in every) or None for every in found]

    yield "Model", [plain_words(config.variant, MAX_NAME) for config in configs]
    yield "Version", texts("engine_versions")
    yield "Kernel", texts("kernels")
    for title, metric in (("TTFT", "ttft_s"), ("TPOT", "tpot_s")):
        yield (
            title,
            [estimated(point.metrics.get(metric), summary.definitions[metric]) for point in points],
        )
    ready = [known[config].ready_s if config in known else None for config in configs]
    yield "Start to ready", [spread_quantity(time, Unit.SECONDS) for time in ready]
    memory = ranked.ranked_memory_metric(summary)
    yield (
        "Memory peak",
        [spread_quantity(point.metrics.get(memory), Unit.BYTES) for point in points],
    )
    quality = _Quality.of(summary)
    if quality is not None:
        yield (
            f"Quality: {quality.definition.name}",
            [quality.quantity(config) for config in configs],
        )
    times = [point.metrics.get("ttft_s") or point.metrics.get("tpot_s") for point in points]
    yield "Starts / trials", [starts_and_trials(time) if time else None for time in times]
    places = [ranked.rank_text(ranked.ranked_entry(ranking, config)) for config in configs]
    yield f"Rank by {summary.definitions[ranking.metric].name}", list(places)
    if ranking.baseline is not None:
        yield (
            "Speed-up",
            [
                ranked.ranked_versus_baseline(ranking, ranked.ranked_entry(ranking, config))
                for config in configs
            ],
        )
    if any(point.failures for point in points):
        yield "Failed", [ranked.ranked_point_outcomes(point) or "no" for point in points]


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
        tokens = self.known("output_tokens", workload_length_text(self.workload.output_tokens))
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
        titles, cells = cells_with_units(_speed_table(summary, lock, rows), _rst)
        return Markup(rst_grid_table(titles, cells, merged=MERGED))

    return _written(
        "by_length.rst",
        _rst,
        of,
        heading=lambda mark, *parts: Markup(rst_heading(_rst(say(*parts)), mark)),
        facts=[*_machine(lock.host), *versions],
        confidence=percent(summary.study.measure.confidence),
        groups=grouped(_rows(summary), lambda row: row.title),
        table=grid,
    )


def _rst(phrase: Phrase) -> str:
    return escape_rst(
        "".join(
            shown(part) if isinstance(part, Quantity) else plain_text((part,)) for part in phrase
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
    return f"{ranked.ranked_point_outcomes(point)}: {point.failures[0].failure.cause}"


def _speed_table(summary: StudySummary, lock: Lock, rows: Sequence[_Row]) -> Table:
    memory = ranked.ranked_memory_metric(summary)
    where = "Device" if memory.startswith("device") else "Host"
    columns = [
        words_column("Model", lambda row: row.model),
        words_column(
            "Input Length",
            lambda row: row.known("input_tokens", workload_length_text(row.workload.input_tokens)),
        ),
        words_column("Quantization", lambda row: row.point.config.variant.rpartition("/")[2]),
        words_column("Devices", lambda row: _devices(row.setup, lock)),
        number_column("Speed", "tokens/s", _speed),
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
    return table(
        rows,
        *columns,
        words_column(
            "n",
            lambda row: (
                starts_and_trials(speed) if (speed := row.estimate("output_throughput")) else None
            ),
        ),
        words_column(
            "Settings", lambda row: plain_words(_settings(summary, row.setup), MAX_SETTINGS)
        ),
        words_column(
            "Note", lambda row: plain_words(row.reason or _remarks(row.measured), MAX_CAUSE)
        ),
    )


def _mean(title: str, metric: str, unit: str = Unit.NONE, factor: float = 1.0) -> ColumnOf[_Row]:
    def figure(row: _Row) -> float | None:
        estimate = row.estimate(metric)
        return estimate.value / factor if estimate else None

    return number_column(title, unit, figure, decimals=DECIMALS)


def _speed(row: _Row) -> Quantity | None:
    known = quantity(row.estimate("output_throughput"), "tokens/s")
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
    failed = ranked.ranked_point_outcomes(measured)
    notes = [
        f"{plural(len(flagged), 'outlier')} flagged" if flagged else "",
        f"besides: {failed}" if failed else "",
    ]
    return "; ".join(filter(None, notes))

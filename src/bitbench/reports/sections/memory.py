"""The memory of each config, and the counters of its engine."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import (
    ConfigSummary,
    EngineSummary,
    MemorySummary,
    PointSummary,
    StudySummary,
)
from bitbench.reports.document.model import Block, Emphasis, Name, Section, Unit
from bitbench.reports.document.words import (
    MAX_NAME,
    ColumnOf,
    build_table,
    format_list,
    make_number_column,
    make_words_column,
    say,
    small_print,
    strong,
)
from bitbench.reports.labels import Labels


@dataclass(frozen=True)
class _Figure:
    """A memory metric, as a column of the table."""

    title: str
    name: str  # as in a sentence
    field: str  # of a MemorySummary
    of_starts: str = "value"  # the mean of its starts, or "low", "high"
    unit: str = Unit.BYTES

    def of(self, memory: MemorySummary) -> float | None:
        value = getattr(memory, self.field)
        number: float | None = value
        if isinstance(value, Estimate):
            number = getattr(value, self.of_starts)
        return number

    @property
    def column(self) -> ColumnOf[ConfigSummary]:
        return make_number_column(self.title, self.unit, lambda config: self.of(config.memory))


FIGURES = (
    _Figure("Weights", "weights on disk", "weight_bytes_stored"),
    _Figure("Loaded", "weights as loaded", "weight_bytes_loaded"),
    _Figure("Steady", "steady memory", "steady_bytes"),
    _Figure("Peak", "peak memory", "peak_bytes", "high"),
    _Figure("Device", "device memory", "device_steady_bytes"),
    _Figure("Device peak", "peak device memory", "device_peak_bytes", "high"),
    _Figure("KV cache", "KV cache set aside", "kv_cache_bytes"),
    _Figure("KV/token", "KV cache per token", "kv_bytes_per_token"),
    _Figure("Room", "room for tokens", "kv_cache_tokens", "low", "tokens"),
)
MEANINGS = {
    "Weights": "their files on disk.",
    "Loaded": "what the engine says that they take once loaded (vLLM says it on a GPU only).",
    "Steady": "proportional set size of all its processes at the end of a trial, mean over trials "
    "and starts; pages that they share count once.",
    "Peak": "the sum of each process's own high-water mark, the largest of its starts; shared "
    "pages count for each process, so it is an upper bound.",
    "Device": "what its processes hold on all devices at the end of a trial, and the most that was "
    "seen (NVML, ten times a second).",
    "KV cache": "set aside for keys and values, where the engine does so.",
    "KV/token": "keys and values of one token in all layers.",
    "Room": "the most tokens that all requests together can hold at once, as the engine says it "
    "(vLLM: in requests of the greatest length that it was started for).",
}
DEFINITION = say(
    strong("Memory"),
    ", one figure per start.",
    *(say(" ", Emphasis((title,)), f": {meaning}") for title, meaning in MEANINGS.items()),
)


def build_memory_section(summary: StudySummary) -> Section | None:
    """Return the memory of each config, or None if all of it is unknown.

    A metric that no config has is left out and listed below the table.
    """
    columns = []
    missing = []
    for figure in FIGURES:
        if any(figure.of(config.memory) is not None for config in summary.configs):
            columns.append(figure.column)
        elif not figure.field.startswith("device"):  # without a device it is not missing
            missing.append(figure.name)
    if not columns:
        return None
    labels = Labels.of(summary, MAX_NAME)
    figures = build_table(
        summary.configs,
        make_words_column("Config", lambda config: Name(labels[config.config])),
        *columns,
    )
    blocks: list[Block] = [figures]
    if missing:
        blocks.append(small_print("Unknown here: ", format_list(missing), "."))
    return Section(say("Memory"), tuple(blocks), in_terminal=True)


Item = TypeVar("Item")

TITLE = say("What the engines counted")


class _EngineFigure(NamedTuple):
    """A metric that engines count themselves, with its definition."""

    title: str
    unit: str
    field: str  # of an EngineSummary
    meaning: str


ENGINE_FIGURES = (
    _EngineFigure(
        "Queue",
        Unit.SECONDS,
        "queue_s",
        "from the arrival of a request until it is taken up, mean.",
    ),
    _EngineFigure(
        "Waiting", Unit.COUNT, "waiting", "requests in the queue at the end of a trial, at most."
    ),
    _EngineFigure(
        "Preempted",
        Unit.COUNT,
        "preemptions",
        "requests computed again for lack of KV cache, in all.",
    ),
    _EngineFigure(
        "Cached", Unit.COUNT, "cached_tokens", "tokens of prompts that came from a cache, in all."
    ),
    _EngineFigure(
        "KV in use", Unit.SHARE, "kv_use", "share of the KV cache taken after a trial, at most."
    ),
    _EngineFigure(
        "Accepted",
        Unit.NONE,
        "acceptance_length",
        "tokens of a step that begins with a draft, mean.",
    ),
    _EngineFigure(
        "Acceptance", Unit.SHARE, "acceptance_rate", "share of drafted tokens that are accepted."
    ),
)


def build_engine_section(summary: StudySummary) -> Section | None:
    """Return the counters of engines for each point, or None if no engine reports any."""
    points = [point for point in summary.points if point.engine is not None]
    if not points:
        return None
    labels = Labels.of(summary, MAX_NAME)
    workload: ColumnOf[PointSummary] = make_words_column(
        "Workload", lambda point: Name(point.point.workload)
    )
    config: ColumnOf[PointSummary] = make_words_column(
        "Config", lambda point: Name(labels[point.point.config])
    )
    blocks = build_engine_counters(points, lambda point: point.engine, workload, config)
    return Section(TITLE, blocks)


def build_engine_counters(
    items: Iterable[Item], engine: Callable[[Item], EngineSummary | None], *first: ColumnOf[Item]
) -> tuple[Block, ...]:
    """Return a table of the metrics that some engine counted, and their definitions."""

    def make_column(figure: _EngineFigure) -> ColumnOf[Item]:
        return make_number_column(
            figure.title, figure.unit, lambda item: getattr(engine(item), figure.field, None)
        )

    counters = build_table(items, *first, *map(make_column, ENGINE_FIGURES), drop_empty=True)
    titles = {column.title for column in counters.columns}
    meanings = []
    for figure in ENGINE_FIGURES:
        if say(figure.title) in titles:
            meanings.append(say(" ", Emphasis((figure.title,)), f": {figure.meaning}"))
    source = "By the engine's own counters, read before and after each trial."
    return (counters, small_print(source, *meanings))

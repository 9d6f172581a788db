"""What each contender takes in memory, as one table for Markdown and terminal."""

from collections.abc import Callable
from dataclasses import dataclass

from bitbench.core.found.summary import ContenderSummary, MemorySummary, Spread, StudySummary
from bitbench.ground.units import UNKNOWN, significant
from bitbench.report.document.numbers import Scale, size_scale
from bitbench.report.document.text import MAX_NAME, code, listing, table
from bitbench.report.labels import Labels

KIB = Scale("KiB", 2**10)
TOKENS = Scale("tokens")


@dataclass(frozen=True)
class Column:
    title: str
    name: str  # as in a sentence
    figure: Callable[[MemorySummary], float | None]
    scale: Scale | None = None  # None: that of the table's sizes


def _mean(figure: Spread | None) -> float | None:
    return figure.mean if figure else None


def _high(figure: Spread | None) -> float | None:
    return figure.high if figure else None


def _low(figure: Spread | None) -> float | None:
    return figure.low if figure else None


COLUMNS = (
    Column("Weights", "weights on disk", lambda one: one.weight_bytes_stored),
    Column("Loaded", "weights as loaded", lambda one: _mean(one.weight_bytes_loaded)),
    Column("Steady", "steady memory", lambda one: _mean(one.steady_bytes)),
    Column("Peak", "peak memory", lambda one: _high(one.peak_bytes)),
    Column("Device", "device memory", lambda one: _mean(one.device_steady_bytes)),
    Column("Device peak", "peak device memory", lambda one: _high(one.device_peak_bytes)),
    Column("KV cache", "KV cache set aside", lambda one: _mean(one.kv_cache_bytes)),
    Column("KV/token", "KV cache per token", lambda one: _mean(one.kv_bytes_per_token), KIB),
    Column("Room", "room for tokens", lambda one: _low(one.kv_cache_tokens), TOKENS),
)
ONLY_WITH_DEVICES = ("Device", "Device peak")
DEFINITIONS = (
    "- **Memory**, one figure per start. *Weights*: their files on disk. *Loaded*: what the engine says that they "
    "take once loaded (vLLM says it on a GPU only). *Steady*: proportional set size of all its processes at the end of "
    "a trial, mean over trials and starts; pages that they share count once. *Peak*: the sum of each process's own "
    "high-water mark, the largest of its starts; shared pages count for each process, so it is an upper bound. "
    "*Device*: what its processes hold on all devices at the end of a trial, and the most that was seen (NVML, ten "
    "times a second). *KV cache*: set aside for keys and values, where the engine does so. *KV/token*: keys and values "
    "of one token in all layers. *Room*: the most tokens that all requests together can hold at once, as the engine "
    "says it (vLLM: in requests of the greatest length that it was started for)."
)


class MemoryTable:
    """Rows and columns, with one unit for all sizes; a column of which nothing is known is left out and named."""

    def __init__(self, summary: StudySummary) -> None:
        self.contenders = summary.contenders
        self.columns = [column for column in COLUMNS if any(self._known(column))]
        missing = [one for one in COLUMNS if one not in self.columns and one.title not in ONLY_WITH_DEVICES]
        self.missing = [column.name for column in missing]
        sizes = [value for column in self.columns if column.scale is None for value in self._known(column)]
        self._sizes = size_scale(sizes)

    def _known(self, column: Column) -> list[float]:
        return [value for one in self.contenders if (value := column.figure(one.memory)) is not None]

    def unit(self, column: Column) -> str:
        return (column.scale or self._sizes).unit

    def row(self, contender: ContenderSummary) -> list[str]:
        return [self._shown(column, contender.memory) for column in self.columns]

    def _shown(self, column: Column, memory: MemorySummary) -> str:
        value = column.figure(memory)
        return UNKNOWN if value is None else significant(value / (column.scale or self._sizes).factor)

    @property
    def caveat(self) -> str | None:
        return f"Nothing is known here about {listing(self.missing)}." if self.missing else None


def memory_section(summary: StudySummary) -> str:
    memory = MemoryTable(summary)
    header = ["Contender", *(f"{column.title} ({memory.unit(column)})" for column in memory.columns)]
    labels = Labels.of(summary, MAX_NAME)
    rows = [[code(labels[one.contender]), *memory.row(one)] for one in memory.contenders]
    told = f"{memory.caveat or ''}{labels.in_words()}".strip()
    parts = ["## Memory", table(header, rows) if memory.columns else "", told]
    return "\n\n".join(part for part in parts if part)

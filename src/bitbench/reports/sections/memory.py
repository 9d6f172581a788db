"""What each config takes in memory."""

from collections.abc import Callable
from dataclasses import dataclass

from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import ConfigSummary, MemorySummary, StudySummary
from bitbench.reports.document.model import Emphasis, Name, Section, Unit
from bitbench.reports.document.tables import ColumnOf, number_column, table, words_column
from bitbench.reports.document.text import MAX_NAME
from bitbench.reports.document.words import listing, say, small_print, strong
from bitbench.reports.labels import Labels


@dataclass(frozen=True)
class _Figure:
    title: str
    name: str  # as in a sentence
    of: Callable[[MemorySummary], float | None]
    unit: str = Unit.BYTES
    is_of_device: bool = False  # not missed where there is no device

    @property
    def column(self) -> ColumnOf[ConfigSummary]:
        return number_column(self.title, self.unit, lambda config: self.of(config.memory))


def _mean(spread: Estimate | None) -> float | None:
    return spread.value if spread else None


def _high(spread: Estimate | None) -> float | None:
    return spread.high if spread else None


def _least_room(memory: MemorySummary) -> float | None:
    return memory.kv_cache_tokens.low if memory.kv_cache_tokens else None


FIGURES = (
    _Figure("Weights", "weights on disk", lambda memory: memory.weight_bytes_stored),
    _Figure("Loaded", "weights as loaded", lambda memory: _mean(memory.weight_bytes_loaded)),
    _Figure("Steady", "steady memory", lambda memory: _mean(memory.steady_bytes)),
    _Figure("Peak", "peak memory", lambda memory: _high(memory.peak_bytes)),
    _Figure("Device", "device memory", lambda memory: _mean(memory.device_steady_bytes), is_of_device=True),
    _Figure("Device peak", "peak device memory", lambda memory: _high(memory.device_peak_bytes), is_of_device=True),
    _Figure("KV cache", "KV cache set aside", lambda memory: _mean(memory.kv_cache_bytes)),
    _Figure("KV/token", "KV cache per token", lambda memory: _mean(memory.kv_bytes_per_token)),
    _Figure("Room", "room for tokens", _least_room, "tokens"),
)
MEANINGS = {
    "Weights": "their files on disk.",
    "Loaded": "what the engine says that they take once loaded (vLLM says it on a GPU only).",
    "Steady": "proportional set size of all its processes at the end of a trial, mean over trials and starts; pages "
    "that they share count once.",
    "Peak": "the sum of each process's own high-water mark, the largest of its starts; shared pages count for each "
    "process, so it is an upper bound.",
    "Device": "what its processes hold on all devices at the end of a trial, and the most that was seen (NVML, ten "
    "times a second).",
    "KV cache": "set aside for keys and values, where the engine does so.",
    "KV/token": "keys and values of one token in all layers.",
    "Room": "the most tokens that all requests together can hold at once, as the engine says it (vLLM: in requests of "
    "the greatest length that it was started for).",
}
DEFINITION = say(
    strong("Memory"),
    ", one figure per start.",
    *(say(" ", Emphasis((title,)), f": {meaning}") for title, meaning in MEANINGS.items()),
)


def memory_section(summary: StudySummary) -> Section | None:
    """None where all of it is unknown; a figure that no config has is left out and named."""
    known = [figure for figure in FIGURES if any(figure.of(config.memory) is not None for config in summary.configs)]
    if not known:
        return None
    labels = Labels.of(summary, MAX_NAME)
    figures = table(
        summary.configs,
        words_column("Config", lambda config: Name(labels[config.config])),
        *(figure.column for figure in known),
    )
    missing = [figure.name for figure in FIGURES if figure not in known and not figure.is_of_device]
    unknown = [small_print("Unknown here: ", listing(missing), ".")] if missing else []
    return Section(say("Memory"), (figures, *unknown), in_terminal=True)

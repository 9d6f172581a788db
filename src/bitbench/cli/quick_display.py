"""The terminal while `bitbench quick` measures a server: a chart that grows, and the one that stays."""

from collections.abc import Iterable, Sequence
from typing import Literal

from rich.bar import Bar
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from bitbench.cli.load_display import LoadDisplay, trial_line
from bitbench.measure.load_study import PreparedLoad
from bitbench.measure.quick import streams_of
from bitbench.records.load_progress import LoadProgress
from bitbench.records.trial import Outcome, TrialRecord
from bitbench.util.units import show_seconds, significant

FIGURES_WIDTH = 32  # of streams, two figures and the gaps
WIDEST_BAR = 30
_JUSTIFIED: tuple[Literal["left", "right"], ...] = ("right", "right", "left", "right", "left")


class QuickDisplay(LoadDisplay):
    """An Observer. Without a terminal it prints a line for each trial; the chart comes at the end."""

    def __init__(self, console: Console, prepared: PreparedLoad) -> None:
        super().__init__(console, prepared)
        self._ended: list[TrialRecord] = []

    def trial_finished(self, record: TrialRecord) -> None:
        self._ended.append(record)
        if not self._console.is_terminal or record.outcome is not Outcome.OK:
            self._print(trial_line(record, f"{len(self._ended):>2}", None, is_narrow=self._is_narrow))

    def _panel(self, progress: LoadProgress) -> Group:
        ended = progress.succeeded + progress.failed
        ttft = f", TTFT {show_seconds(progress.ttft.p50_s)}" if progress.ttft else ""
        now = f"{self._name}: {ended:,} of {progress.requests:,} requests, {progress.chunks_per_s:,.0f} tok/s{ttft}"
        return Group(chart(self._ended, self._console.width), Text(now, style="dim", no_wrap=True, overflow="ellipsis"))


def chart(trials: Sequence[TrialRecord], width: int) -> Table:
    """Throughput and first token against streams: means over the trials that count, each beside its bar."""
    drawn = Table.grid(padding=(0, 1))
    for justify in _JUSTIFIED:
        drawn.add_column(justify=justify, no_wrap=True)
    counted = [trial for trial in trials if trial.outcome is Outcome.OK]
    levels = sorted({streams_of(trial) for trial in counted})
    of_level = {level: [trial.metrics for trial in counted if streams_of(trial) == level] for level in levels}
    served = {level: _mean(metrics.output_throughput for metrics in found) for level, found in of_level.items()}
    first_s = {level: _mean(metrics.ttft_p50_s for metrics in found) for level, found in of_level.items()}
    bar_width = max(min((width - FIGURES_WIDTH) // 2, WIDEST_BAR), 1)

    def bar(figures: dict[int, float], level: int, color: str) -> Bar:
        return Bar(max(*figures.values(), 1e-9), 0, figures[level], width=bar_width, color=color)

    if levels:
        drawn.add_row("streams", "tok/s", "", "TTFT p50", "", style="bold")
    for level in levels:
        shown = significant(served[level]), show_seconds(first_s[level])
        drawn.add_row(f"{level}", shown[0], bar(served, level, "green"), shown[1], bar(first_s, level, "yellow"))
    return drawn


def _mean(figures: Iterable[float | None]) -> float:
    known = [figure for figure in figures if figure is not None]
    return sum(known) / len(known) if known else 0.0

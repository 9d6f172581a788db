"""The terminal while a variant is created: the step, the layer, and the time left."""

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bitbench.quantize import work
from bitbench.util.units import show_duration

_LINES_PER_STEP = 4  # in a log, where a bar cannot be drawn


class QuantizeDisplay:
    """A bar in a terminal; elsewhere a line for each stage and some for each step."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            console=console,
            transient=True,
            refresh_per_second=2,  # drawing costs processor time that the work would miss
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=None, left="")

    def __enter__(self) -> "QuantizeDisplay":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, now: work.QuantizeProgress) -> None:
        left = "" if now.remaining_s is None else f"about {show_duration(now.remaining_s)} left"
        self._bar.update(
            self._task, description=f"{self._title}: {now.place}", total=now.parts, completed=now.part, left=left
        )
        if not self._console.is_terminal and self._is_worth_a_line(now):
            self._console.print(f"{self._title}: {now.place}{', ' + left if left else ''}", soft_wrap=True)

    def _is_worth_a_line(self, now: work.QuantizeProgress) -> bool:
        return not now.parts or now.part % max(1, now.parts // _LINES_PER_STEP) == 0

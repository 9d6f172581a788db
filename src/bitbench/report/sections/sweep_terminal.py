"""A sweep or a search in a terminal."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bitbench.core.found.summary import StudySummary
from bitbench.report.document.text import plain
from bitbench.report.sections.sweep import asked, sweep_answer, sweep_table

WIDE = 130  # columns from which intervals fit


def render_sweep(summary: StudySummary, console: Console) -> None:
    """The table, then the answer: what is read last stays on the screen."""
    shown = sweep_table(summary, intervals=console.width >= WIDE)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    last = len(shown.header) - 1
    for column, (label, unit) in enumerate(zip(shown.header, shown.units, strict=True)):
        table.add_column(f"{label}\n{unit}", justify="left" if column == last else "right", overflow="fold")
    for row in shown.rows:
        table.add_row(*(Text(cell) for cell in row), style="red" if "fails" in row[last] else None)
    console.print()
    console.print(Text(asked(summary), style="dim"))
    console.print(table)
    console.print()
    for sentence in sweep_answer(summary, plain):
        console.print(Text(f"• {sentence}"))

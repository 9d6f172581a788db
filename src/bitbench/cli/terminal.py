"""What is drawn for people: our own colours and lines; names, errors and answers from elsewhere are only text.

Everything else that is written passes `visible_streams` of the package.
"""

import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from bitbench.util.text import visible

PIPE_WIDTH = (
    10_000  # characters: in a pipe or a file a table is whole and a paragraph one line, for grep
)


class Terminal(Console):
    """A rich console without markup, emoji codes and highlighting; styles are given by `Text`."""

    def __init__(self, *, stderr: bool = False) -> None:
        stream: TextIO = sys.stderr if stderr else sys.stdout
        while hasattr(
            stream, "rich_proxied_file"
        ):  # what stands before the terminal would spell out our own colours
            stream = stream.rich_proxied_file
        is_read_elsewhere = not stream.isatty() and "COLUMNS" not in os.environ
        width = PIPE_WIDTH if is_read_elsewhere else None
        super().__init__(file=stream, markup=False, emoji=False, highlight=False, width=width)

    def render_str(self, text: str, **options: Any) -> Text:
        """Before the layout, so that a column is as wide as what it shows."""
        return super().render_str(visible(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """All that is drawn passes here; a segment with `control` is rich's own movement of the cursor."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))

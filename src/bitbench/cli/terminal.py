"""The colored output for people. Names, errors and answers from elsewhere are plain text in it.

All other output passes `visible_streams` of the package.
"""

import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from bitbench.util.text import escape_hidden

# Characters. In a pipe or a file, tables stay whole and paragraphs are one line, for grep.
PIPE_WIDTH = 10_000


class Terminal(Console):
    """A rich console without markup, emoji codes and highlighting. Styles come from `Text`."""

    def __init__(self, *, stderr: bool = False) -> None:
        stream: TextIO = sys.stderr if stderr else sys.stdout
        # The stream in front of the terminal would spell out bitbench's own colors.
        while hasattr(stream, "rich_proxied_file"):
            stream = stream.rich_proxied_file
        is_read_elsewhere = not stream.isatty() and "COLUMNS" not in os.environ
        width = PIPE_WIDTH if is_read_elsewhere else None
        super().__init__(file=stream, markup=False, emoji=False, highlight=False, width=width)

    def render_str(self, text: str, **options: Any) -> Text:
        """Spell out control characters before the layout, so that columns get the right width."""
        return super().render_str(escape_hidden(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield all segments with control characters spelled out, except rich's cursor
        movements."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=escape_hidden(segment.text))

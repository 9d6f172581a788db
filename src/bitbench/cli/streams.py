"""Standard output and error as `main` leaves them to the commands: what a terminal would obey or hide is spelled out.

Whatever is written plainly passes here: texts, tables of data, usage errors, warnings, tracebacks. What is drawn with
colours passes `terminal`. Without rich, so that --help stays quick.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from bitbench.util.visible import visible


class _VisibleStream:
    """A stream on which nothing but lines and tabs is obeyed. `Terminal` writes to what is behind it."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(visible(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # bytes would pass unseen
            raise AttributeError(name)
        return getattr(self.rich_proxied_file, name)


@contextmanager
def visible_streams() -> Iterator[None]:
    """Standard error always, standard output where it is a terminal: a file or a pipe gets data as it is."""
    out, err = sys.stdout, sys.stderr
    if out.isatty():
        sys.stdout = cast("TextIO", _VisibleStream(out))
    sys.stderr = cast("TextIO", _VisibleStream(err))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err

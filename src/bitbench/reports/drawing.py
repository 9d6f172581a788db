"""Figures of a report are drawn in a process of their own, which gets ready while they are still being computed."""

import json
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from bitbench.study.base import Json
from bitbench.util.child_environment import bitbench_environment
from bitbench.util.child_python import NOWHERE, own
from bitbench.util.frames import read_frame, write_frame

if TYPE_CHECKING:
    from bitbench.reports.charts.figure import Figure

_COMMAND = own("bitbench.reports.charts.svg_process")


class Drawing:
    """Begins with its context, and ends with it. Where that process cannot draw, this one does."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with suppress(OSError):  # a machine that has no room for a process more
            self._process = subprocess.Popen(
                _COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=NOWHERE,
                env=bitbench_environment(),
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()  # it may be getting ready for figures that do not come
            self._process.communicate()

    def draw(self, figures: Sequence["Figure"]) -> list[str]:
        """Their SVG; only once."""
        from bitbench.reports.charts.svg import standing_alone, svg

        try:
            return self._drawn_there([standing_alone(figure) for figure in figures])
        except (OSError, EOFError):
            return [svg(figure) for figure in figures]

    def _drawn_there(self, specifications: list[dict[str, Json]]) -> list[str]:
        if self._process is None:
            raise EOFError
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        write_frame(self._process.stdin, json.dumps(specifications).encode())
        drawings: list[str] = json.loads(read_frame(self._process.stdout))
        return drawings

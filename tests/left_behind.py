"""Processes that a run in a folder has left behind."""

import os
from contextlib import suppress
from pathlib import Path

import psutil

from bitbench.engines.left_over import list_left_over_processes

_MARK = (
    "BITBENCH_TEST_PLACE"  # in the environment of a run and of all that it starts, but for engines
)


def marked(place: Path) -> dict[str, str]:
    """Our variables, for a run whose processes are to be found again."""
    return {**os.environ, _MARK: str(place)}


def alive_in(place: Path) -> list[psutil.Process]:
    """Those of a run that was marked with this place, and engines whose driver has ended."""
    found = []
    engines = list_left_over_processes()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_ours = process.pid in engines or process.environ().get(_MARK) == str(place)
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found

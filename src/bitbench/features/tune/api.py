"""`bitbench.tune`: what the command does, from Python."""

from pathlib import Path

from bitbench.features.tune import search
from bitbench.features.tune.types import Tuning
from bitbench.machine.workplace import Workplace
from bitbench.ports import Observer
from bitbench.running.offers import LogObserver
from bitbench.study.study_file import check_input
from bitbench.util.units import parse_seconds


def tune(
    study: str | Path,
    into: str | Path | None = None,
    *,
    budget: str | float | None = None,
    observer: Observer | None = None,
) -> Tuning:
    """Search the configs of a study file for the best under its limits, and confirm the winner
    against the baseline in a fresh study.

    The file needs a section `tune`. `budget` overrides the file's budget. `observer` is told of the
    progress, as in `run`.
    """
    budget_s = None
    if budget is not None:
        budget_s = check_input(lambda: parse_seconds(budget), about="budget")
    source = search.read_search_source(Path(study), budget_s)
    folder = None if into is None else Path(into)
    return search.tune(source, folder, observer or LogObserver(), Workplace())

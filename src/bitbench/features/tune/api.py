"""`bitbench.tune`: what the command does, from Python."""

from pathlib import Path

from bitbench.features.tune import search
from bitbench.features.tune.types import Tuning
from bitbench.machine.workplace import Workplace
from bitbench.ports import Observer
from bitbench.running.offers import LogObserver
from bitbench.study.study_file import checked
from bitbench.util.units import parse_seconds


def tune(
    study: str | Path,
    into: str | Path | None = None,
    *,
    budget: str | float | None = None,
    observer: Observer | None = None,
) -> Tuning:
    """Search the configs of a study file with a section `tune` for the best under its limits, and confirm it against
    the baseline in a fresh study. `budget` overrides the file's; `observer` as that of `run`."""
    at = Workplace()
    budget_s = None if budget is None else checked(lambda: parse_seconds(budget), about="budget")
    source = search.tune_search_source(Path(study), budget_s)
    return search.tune(source, None if into is None else Path(into), observer or LogObserver(), at)

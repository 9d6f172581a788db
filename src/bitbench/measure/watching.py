"""Shows a run to somebody else while it goes on, by what a feature offers for that."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from bitbench.feature import offered
from bitbench.measure.study import Lab
from bitbench.ports import Observer
from bitbench.records.folder import StudyFolder
from bitbench.util.errors import UsageError


def watched(
    lab: Lab, into: StudyFolder | None, inner: Observer, *, port: int, on_url: Callable[[str], None]
) -> AbstractContextManager[Observer]:
    """Return an observer that passes everything on to `inner`, and tells `on_url` where to look."""
    offers = offered("observers")
    if "watch" not in offers:
        raise UsageError("--watch: the feature that serves this page is not part of this installation")
    observer: AbstractContextManager[Observer] = offers["watch"].load()(lab, into, inner, port=port, on_url=on_url)
    return observer

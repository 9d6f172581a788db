"""Shows a run to somebody else while it goes on, by what a feature offers for that."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from bitbench.core.ports import Observer
from bitbench.feature import offered
from bitbench.ground.errors import UsageError
from bitbench.lab.study import Lab
from bitbench.store.folder import StudyFolder


def watched(
    lab: Lab, into: StudyFolder | None, inner: Observer, *, port: int, on_url: Callable[[str], None]
) -> AbstractContextManager[Observer]:
    """Return an observer that passes everything on to `inner`, and tells `on_url` where to look."""
    offers = offered("observers")
    if "watch" not in offers:
        raise UsageError("--watch: the feature that serves this page is not part of this installation")
    observer: AbstractContextManager[Observer] = offers["watch"].load()(lab, into, inner, port=port, on_url=on_url)
    return observer

"""A run of a part of a study: not all of its configs, or not as long as the study's own claims would have it."""

from collections.abc import Callable
from dataclasses import dataclass

from bitbench.records.folder import StudyFolder
from bitbench.study.plan import Plan, Point


@dataclass(frozen=True)
class StudyPart:
    of: Callable[[Plan], Plan]  # the same plan with fewer configs
    # Which points go on after so many blocks; none: it ends. None: as the claims of the study say.
    goes_on: Callable[[StudyFolder, int], frozenset[Point]] | None = None

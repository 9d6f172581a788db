"""A study folder, read: what statistics, report, comparison and query share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from bitbench.records.lock import Lock
from bitbench.records.profile import OperatorProfile
from bitbench.records.quality import QualityRecord
from bitbench.records.roof import MachineRoof
from bitbench.records.trial import InstanceRecord, TrialRecord
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.study import Study
from bitbench.util.errors import RowsNotKeptError

if TYPE_CHECKING:
    import pyarrow as pa


def _no_rows(record: TrialRecord | QualityRecord, _columns: Sequence[str] | None = None) -> "pa.Table":
    raise RowsNotKeptError(f"the rows of {record.id} were not kept")


@dataclass(frozen=True)
class StudyRecords:
    """Everything but rows, which are large: these are read when they are asked for."""

    name: str  # of its folder, as it was given
    lock: Lock
    trials: Sequence[TrialRecord] = ()
    instances: Sequence[InstanceRecord] = ()
    quality: Sequence[QualityRecord] = ()
    profiles: Sequence[OperatorProfile] = ()
    roof: MachineRoof | None = None  # None: not measured yet
    requests_of: "Callable[[TrialRecord, Sequence[str] | None], pa.Table]" = _no_rows  # with only these columns
    scores_of: "Callable[[QualityRecord], pa.Table]" = _no_rows

    @property
    def plan(self) -> Plan:
        return self.lock.plan

    @property
    def study(self) -> Study:
        return self.lock.plan.study

    @property
    def starts_and_quality(self) -> list[InstanceRecord | QualityRecord]:
        """What took time beside the trials."""
        return [*self.instances, *self.quality]

    def was_running(self, config: Config) -> bool:
        """Whether bitbench did not start it: its trials are what was repeated, and no start is in question."""
        return any(instance.facts.was_running for instance in self.instances if instance.config == config)

    def counted(self, point: Point) -> list[TrialRecord]:
        """The trials of a point that enter its figures."""
        return list(self._counted.get(point, ()))

    @cached_property
    def _counted(self) -> dict[Point, list[TrialRecord]]:
        found: dict[Point, list[TrialRecord]] = {}
        for trial in self.trials:
            if trial.counts:
                found.setdefault(trial.point, []).append(trial)
        return found

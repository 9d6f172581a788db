"""What the records of a study leave to do, as a run fills its folder."""

from collections.abc import Callable, Sequence

from bitbench.analysis.sequential import baseline_of
from bitbench.measure.budget import StudyPace
from bitbench.measure.progress import Progress, Recorded, excused
from bitbench.records.folder import StudyFolder
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import Outcome, TrialRecord
from bitbench.study.plan import Plan

THIS_HOST = "local"  # what records call the machine of a study that runs on one


class Schedule:
    """What is recorded, and what that leaves to do."""

    def __init__(self, plan: Plan, make_pace: Callable[[], StudyPace], folder: StudyFolder) -> None:
        self._plan, self._make_pace, self._folder = plan, make_pace, folder
        recorded = self._recorded()
        self.excused = excused(recorded)  # what an earlier call gave up, this one measures
        self._begin_with(recorded)

    def reload(self) -> None:
        """From the folder alone: also after a machine was lost, since that takes back what its block had."""
        self._begin_with(self._recorded())

    def _begin_with(self, recorded: Sequence[Recorded]) -> None:
        self.trials: list[TrialRecord] = []
        self.hosts: dict[int, str] = {}  # on which each block was begun
        self.pace = self._make_pace()
        self.progress = Progress(self._plan, self.pace, baseline_of(self._plan), excused=self.excused)
        for record in recorded:
            self.add(record)

    def _recorded(self) -> list[Recorded]:
        return [*self._folder.trials(), *self._folder.quality_records(), *self._folder.instances()]

    def add(self, record: Recorded) -> None:
        self.progress.add([record])
        self.pace.add(record)
        if isinstance(record, QualityRecord):
            return
        if isinstance(record, TrialRecord):
            self.trials.append(record)
        elif record.outcome is Outcome.LOST:
            self.hosts.pop(record.block, None)
        else:
            self.hosts[record.block] = record.host or THIS_HOST

    @property
    def measured(self) -> int:
        return sum(trial.kind == "measured" for trial in self.trials)

"""Who listens while a study runs that was started from Python: the log."""

import logging

from bitbench.records.load_progress import LoadProgress
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import InstanceRecord, TrialRecord
from bitbench.study.plan import Config, Group, Plan, Point
from bitbench.util.visible import visible

_LOG = logging.getLogger("bitbench")


class _VisibleFilter(logging.Filter):
    """A log is often a terminal: names and answers from elsewhere are spelled out."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = visible(record.getMessage()), ()
        return True


_LOG.addFilter(_VisibleFilter())


class LogObserver:
    """An Observer: warnings of the logger `bitbench` are what a person should see, the rest is `info`."""

    def study_started(self, plan: Plan, trials_done: int) -> None:
        _LOG.info("%s: %d points, %d trials done", plan.study.name, len(plan.points), trials_done)

    def group_started(self, group: Group, remaining_s: float | None) -> None:
        left = "" if remaining_s is None else f", about {remaining_s:.0f} s left"
        _LOG.info("%s: starting%s", group.name, left)

    def instance_ready(self, record: InstanceRecord) -> None:
        _LOG.info("%s %s: %s", record.id, record.config.name, record.cause or "ready")

    def trial_started(self, point: Point, index: int, *, warmup: bool) -> None:
        _LOG.debug("%s: %s %d", point.name, "warm-up" if warmup else "trial", index)

    def trial_running(self, progress: LoadProgress) -> None:
        """A few times a second: too much for a log."""

    def trial_finished(self, record: TrialRecord) -> None:
        _LOG.info("%s %s: %s", record.id, record.point.name, record.cause or record.outcome)

    def quality_running(self, config: Config, step: str) -> None:
        _LOG.debug("%s: quality, %s", config.name, step)

    def quality_finished(self, record: QualityRecord) -> None:
        _LOG.info("%s %s: %s", record.id, record.config.name, record.cause or record.outcome)

    def note(self, message: str) -> None:
        _LOG.info("%s", message)

    def warn(self, message: str) -> None:
        _LOG.warning("%s", message)

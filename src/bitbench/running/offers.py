"""What features offer to a run: other machines. And the log that listens to a run from Python."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from bitbench.feature import offered
from bitbench.ports import LoadClient
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import InstanceRecord, LoadProgress, TrialRecord
from bitbench.study.plan import Config, Group, Plan, Point
from bitbench.util.errors import UsageError
from bitbench.util.text import visible

if TYPE_CHECKING:
    from bitbench.running.runner import StudyRun


Executor = Callable[
    ["StudyRun"], None
]  # fills the folder of a study, as `bitbench.running.loop` does on this machine


def executor_at(where: str) -> Executor:
    """`where`: such as ray://HEAD:PORT."""
    executor: Executor = _on("executors", where)(where)
    return executor


def load_client(
    nodes: int | None, on: str | None, *, api_key_env: str
) -> AbstractContextManager[LoadClient]:
    """This machine alone; or `nodes` of the machines that `on` names, all of them by default. Raises UsageError."""
    from bitbench.engines.endpoint import (
        endpoint_api_key,
    )  # these two bring pyarrow, which no other function here needs
    from bitbench.loadgen.workers import LoadWorkers

    if on is None and nodes is not None:
        raise UsageError("--nodes says how many machines of --on send requests; give --on too")
    if on is None:
        return LoadWorkers()
    has_key = bool(endpoint_api_key(api_key_env))
    client: AbstractContextManager[LoadClient] = _on("load_clients", on)(on, nodes, has_key=has_key)
    return client


def _on(group: str, where: str) -> Any:
    known, scheme = offered(group), where.partition(":")[0]
    if scheme not in known:
        begins = f"write something that begins with {', '.join(known)}"
        raise UsageError(
            f"--on {where}: {begins if known else 'this installation has no feature for other machines'}"
        )
    return known[scheme].load()


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

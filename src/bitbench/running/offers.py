"""Other machines that features offer to a run, and the log observer for runs from Python."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from bitbench.feature import collect_offers
from bitbench.ports import LoadClient
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import InstanceRecord, LoadProgress, TrialRecord
from bitbench.study.plan import Config, Group, Plan, Point
from bitbench.util.errors import UsageError
from bitbench.util.text import escape_hidden

if TYPE_CHECKING:
    from bitbench.running.runner import StudyRun


# Fills the folder of a study, as `bitbench.running.loop` does on this machine.
Executor = Callable[["StudyRun"], None]


def load_executor(address: str) -> Executor:
    """Return the executor for an address such as ray://HEAD:PORT. Raise UsageError if none fits."""
    executor: Executor = _load_offer("executors", address)(address)
    return executor


def load_client(
    nodes: int | None, on: str | None, *, api_key_env: str
) -> AbstractContextManager[LoadClient]:
    """Return the load client of this machine, or of `nodes` of the machines at the address `on`.

    `nodes` defaults to all of these machines. Raise UsageError for options that do not fit.
    """
    # These two import pyarrow, which no other function here needs.
    from bitbench.engines.endpoint import read_endpoint_api_key
    from bitbench.loadgen.workers import LoadWorkers

    if on is None and nodes is not None:
        raise UsageError("--nodes says how many machines of --on send requests; give --on too")
    if on is None:
        return LoadWorkers()
    has_key = bool(read_endpoint_api_key(api_key_env))
    client: AbstractContextManager[LoadClient] = _load_offer("load_clients", on)(
        on, nodes, has_key=has_key
    )
    return client


def _load_offer(group: str, address: str) -> Any:
    """Return what a feature offers for the scheme of this address."""
    by_scheme = collect_offers(group)
    scheme = address.partition(":")[0]
    if scheme in by_scheme:
        return by_scheme[scheme].load()
    advice = "this installation has no feature for other machines"
    if by_scheme:
        advice = f"write something that begins with {', '.join(by_scheme)}"
    raise UsageError(f"--on {address}: {advice}")


_LOG = logging.getLogger("bitbench")


class _VisibleFilter(logging.Filter):
    """A filter that escapes control characters: a log is often a terminal."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = escape_hidden(record.getMessage())
        record.args = ()
        return True


_LOG.addFilter(_VisibleFilter())


class LogObserver:
    """An Observer that logs to `bitbench`: a warning for what a person should see, else info."""

    def study_started(self, plan: Plan, trials_done: int) -> None:
        _LOG.info("%s: %d points, %d trials done", plan.study.name, len(plan.points), trials_done)

    def group_started(self, group: Group, remaining_s: float | None) -> None:
        left = "" if remaining_s is None else f", about {remaining_s:.0f} s left"
        _LOG.info("%s: starting%s", group.name, left)

    def instance_ready(self, record: InstanceRecord) -> None:
        _LOG.info("%s %s: %s", record.id, record.config.name, record.cause or "ready")

    def trial_started(self, point: Point, index: int, *, warmup: bool) -> None:
        kind = "warm-up" if warmup else "trial"
        _LOG.debug("%s: %s %d", point.name, kind, index)

    def trial_running(self, progress: LoadProgress) -> None:
        """Log nothing: this is called a few times a second."""

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

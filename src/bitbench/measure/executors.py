"""Who measures instead of this machine alone, by what features offer for the scheme of `--on`."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from bitbench.engines.endpoint import key_from
from bitbench.feature import offered
from bitbench.loadgen.workers import LoadWorkers
from bitbench.ports import LoadClient
from bitbench.util.errors import UsageError

if TYPE_CHECKING:
    from bitbench.measure.runner import StudyRun

Executor = Callable[["StudyRun"], None]  # fills the folder of a study, as `bitbench.measure.loop` does on this machine


def executor_at(where: str, *, without_token: bool = False) -> Executor:
    """`where`: such as local:2 or ssh://HOST,HOST. `without_token`: a cluster that is open to all will do."""
    executor: Executor = _offered("executors", where)(where, without_token=without_token)
    return executor


def load_client(
    nodes: int | None, on: str | None, *, api_key_env: str, without_token: bool = False
) -> AbstractContextManager[LoadClient]:
    """This machine alone; or `nodes` of the machines that `on` names, all of them by default. `nodes` alone are so many
    load-generator processes here. Raises UsageError."""
    if nodes is None and on is None:
        return LoadWorkers()
    where = on or f"local:{nodes}"
    has_key = bool(key_from(api_key_env))
    client: AbstractContextManager[LoadClient] = _offered("load_clients", where)(
        where, nodes, has_key=has_key, without_token=without_token
    )
    return client


def _offered(group: str, where: str) -> Any:
    known, scheme = offered(group), where.partition(":")[0]
    if scheme not in known:
        begins = f"write something that begins with {', '.join(f'{name}:' for name in known)}"
        raise UsageError(f"--on {where}: {begins if known else 'this installation has no feature for other machines'}")
    return known[scheme].load()

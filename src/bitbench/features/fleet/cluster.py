"""`--on ray://HEAD:PORT` and `--on gpus`: joins a Ray cluster, or starts one on this machine, and lists its places.

Ray restarts and retries nothing here: a block that ran twice without a word would be in the records twice.
"""

import contextlib
import os
import platform
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from bitbench.machine.gpus import visible_gpus
from bitbench.util.child_processes import NOWHERE
from bitbench.util.errors import FleetError, UsageError
from bitbench.util.files import SafeFolder

_NOT_INSTALLED = "Ray is not installed here; install it with: pip install 'bitbench[fleet]'"
# A node that went away is noticed within 15 s instead of several minutes; nodes and head need the same variables.
NOTICE_VARIABLES = {
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_grpc_client_keepalive_time_ms": "5000",
    "RAY_grpc_client_keepalive_timeout_ms": "5000",
}
_LOCAL_VARIABLES = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else Ray leaves 127.0.0.1 for an address of the network
    "RAY_memory_monitor_refresh_ms": "0",  # it would kill an engine that fills the memory on purpose
    "RAY_worker_oom_score_adjustment": "0",  # engines would inherit it, and be killed first
    "RAY_USAGE_STATS_ENABLED": "0",
}
_OBJECT_BYTES = 200 * 2**20  # results are fetched one by one


@dataclass(frozen=True)
class ClusterAddress:
    """`ray://HEAD:PORT`, with a class of nodes; without a place: `gpus`, a cluster of this machine alone."""

    place: str | None
    resource: str | None = None
    per_gpu: bool = False


@dataclass(frozen=True)
class Place:
    """A node of the cluster, or one of its GPUs."""

    name: str
    node_id: str  # Ray's; a node that comes back has another one
    slot: int
    cpus: float
    gpus: int


def parse_cluster_address(where: str) -> ClusterAddress:
    """Raises UsageError."""
    if where == "gpus":
        return ClusterAddress(None, per_gpu=True)
    place, _, selection = where.removeprefix("ray://").partition("?")
    fields = parse_qs(selection, keep_blank_values=True)
    resource = fields.pop("resource", [""])[0]
    per = fields.pop("per", ["node"])[0]
    is_valid = not fields and per in ("node", "gpu")
    if not where.startswith("ray://") or not place or not is_valid:
        raise UsageError(
            f"--on {where}: give gpus, or ray://HEAD:PORT with ?resource=NAME or ?per=gpu"
        )
    return ClusterAddress(place, resource or None, per == "gpu")


@contextlib.contextmanager
def connected_cluster(address: ClusterAddress) -> Iterator[Any]:
    """Yield the module `ray`, connected. Raises FleetError."""
    if address.place is not None and os.environ.get("RAY_AUTH_MODE") not in ("token", "disabled"):
        raise FleetError(
            "without a token anybody who reaches a Ray cluster can run code on it; start it with "
            "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH, and set both here; with RAY_AUTH_MODE=disabled you accept it"
        )
    with contextlib.ExitStack() as stack:
        _set_defaults(NOTICE_VARIABLES)
        if address.place is None:
            _set_defaults(_LOCAL_VARIABLES)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bitbench-ray-"))
            _require_own_token(Path(folder))
        ray = _import_ray()
        try:
            with contextlib.chdir(
                NOWHERE
            ):  # Ray's workers import from the folder that it was started in
                ray.init(**_start_options(address), log_to_driver=False, logging_level="error")
        except Exception as error:  # Ray has a dozen, some of them only RuntimeError
            raise FleetError(
                f"the Ray cluster at {address.place or 'gpus'} cannot be used: {_why(error)}"
            ) from error
        stack.callback(ray.shutdown)
        yield ray


def list_places(ray: Any, address: ClusterAddress) -> list[Place]:
    """Return the places of the nodes that are alive and of the class asked for."""
    places: list[Place] = []
    for node in ray.nodes():
        resources = node["Resources"]
        if not node["Alive"] or not resources.get("CPU") or not _is_wanted(node, address):
            continue
        gpus = int(resources.get("GPU", 0))
        slots = gpus if address.per_gpu else 1
        for slot in range(slots):
            name = str(node["NodeName"]) + (f":{slot}" if slots > 1 else "")
            cpus = (
                resources["CPU"] / slots
            )  # all of them, so that Ray gives the node to no other user
            places.append(
                Place(name, str(node["NodeID"]), slot, cpus, 1 if address.per_gpu else gpus)
            )
    return places


def require_places(ray: Any, address: ClusterAddress) -> list[Place]:
    """Raises FleetError where the cluster has no such node."""
    places = list_places(ray, address)
    if not places:
        raise FleetError(
            "no node of the Ray cluster fits --on; `ray status` shows what its nodes have"
        )
    return places


def make_actor(ray: Any, kind: type[Any], place: Place, *arguments: object) -> Any:
    """Start an actor at this place; Ray neither restarts it nor repeats its calls."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # Without a GPU of its own an actor would see none, also where engines are to find them by themselves.
    variables = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    options = {
        "num_cpus": place.cpus,
        "num_gpus": place.gpus,
        "max_restarts": 0,
        "max_task_retries": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(place.node_id, soft=False),
        "runtime_env": {"env_vars": variables},
    }
    return ray.remote(concurrency_groups={"signs": 1})(kind).options(**options).remote(*arguments)


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _is_wanted(node: Mapping[str, Any], address: ClusterAddress) -> bool:
    return not address.resource or bool(node["Resources"].get(address.resource))


def _start_options(address: ClusterAddress) -> dict[str, object]:
    if address.place is not None:
        return {"address": address.place}
    gpus = len(visible_gpus())
    if gpus == 0:
        raise FleetError("--on gpus: no NVIDIA GPU is visible here; `bitbench doctor` says why")
    return {
        "address": "local",
        "num_gpus": gpus,
        "num_cpus": max(gpus, os.cpu_count() or 1),
        "include_dashboard": False,
        "object_store_memory": _OBJECT_BYTES,
        "_node_name": platform.node(),
        "_node_ip_address": "127.0.0.1",
    }


def _set_defaults(variables: Mapping[str, str]) -> None:
    """Before Ray is imported, which reads them then."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def _require_own_token(folder: Path) -> None:
    """Make other users of this machine, who can reach the cluster's ports, strangers to it."""
    token = SafeFolder(folder).write("token", secrets.token_hex(32), 0o600)
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token))


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise FleetError(_NOT_INSTALLED) from None
    return ray


def _why(failed: BaseException) -> str:
    """Ray hides a refused token behind a connection that failed."""
    error: BaseException | None = failed
    while error is not None:
        if type(error).__name__ == "AuthenticationError":
            return "it refuses the token; RAY_AUTH_TOKEN_PATH must name a file with the token that it was started with"
        error = error.__cause__ or error.__context__
    return first_line(failed)

"""`--on ray://HEAD:PORT` and `--on gpus`: joining a Ray cluster or starting one on this machine,
and listing its places.

Ray restarts and retries nothing here. A block that silently ran twice would be in the records
twice.
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
# Ray notices a lost node within 15 s instead of minutes. Nodes and head need the same variables.
NOTICE_VARIABLES = {
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_grpc_client_keepalive_time_ms": "5000",
    "RAY_grpc_client_keepalive_timeout_ms": "5000",
}
_LOCAL_VARIABLES = {
    # Otherwise Ray would replace 127.0.0.1 by an address of the network.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # The memory monitor would kill an engine that fills the memory on purpose.
    "RAY_memory_monitor_refresh_ms": "0",
    # Engines would inherit the score and be killed first.
    "RAY_worker_oom_score_adjustment": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
_OBJECT_BYTES = 200 * 2**20  # enough, since results are fetched one by one


@dataclass(frozen=True)
class ClusterAddress:
    """The address `ray://HEAD:PORT` and the class of nodes to use. `place` is None for `gpus`, a
    cluster of this machine alone."""

    place: str | None
    resource: str | None = None
    per_gpu: bool = False


@dataclass(frozen=True)
class Place:
    """A node of the cluster, or one of its GPUs."""

    name: str
    node_id: str  # Ray's id; a node that comes back has another one
    slot: int
    cpus: float
    gpus: int


def parse_cluster_address(text: str) -> ClusterAddress:
    """Return the address that `--on` names. Raise UsageError."""
    if text == "gpus":
        return ClusterAddress(None, per_gpu=True)
    head, _, selection = text.removeprefix("ray://").partition("?")
    fields = parse_qs(selection, keep_blank_values=True)
    resource = fields.pop("resource", [""])[0]
    per = fields.pop("per", ["node"])[0]
    is_valid = not fields and per in ("node", "gpu")
    if not text.startswith("ray://") or not head or not is_valid:
        raise UsageError(
            f"--on {text}: give gpus, or ray://HEAD:PORT with ?resource=NAME or ?per=gpu"
        )
    return ClusterAddress(head, resource or None, per == "gpu")


@contextlib.contextmanager
def connect_cluster(address: ClusterAddress) -> Iterator[Any]:
    """Yield the connected module `ray`. Raise FleetError."""
    if address.place is not None and os.environ.get("RAY_AUTH_MODE") not in ("token", "disabled"):
        raise FleetError(
            "without a token anybody who reaches a Ray cluster can run code on it; start it with "
            "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH, and set both here; "
            "with RAY_AUTH_MODE=disabled you accept it"
        )
    with contextlib.ExitStack() as stack:
        _set_defaults(NOTICE_VARIABLES)
        if address.place is None:
            _set_defaults(_LOCAL_VARIABLES)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bitbench-ray-"))
            _require_own_token(Path(folder))
        ray = _import_ray()
        try:
            # Ray's workers import from the folder that Ray was started in.
            with contextlib.chdir(NOWHERE):
                ray.init(**_start_options(address), log_to_driver=False, logging_level="error")
        except Exception as error:  # Ray has a dozen types, some of them only RuntimeError
            raise FleetError(
                f"the Ray cluster at {address.place or 'gpus'} cannot be used: "
                f"{_describe_cause(error)}"
            ) from error
        stack.callback(ray.shutdown)
        yield ray


def list_places(ray: Any, address: ClusterAddress) -> list[Place]:
    """Return the places of the live nodes in the address's class."""
    places: list[Place] = []
    for node in ray.nodes():
        resources = node["Resources"]
        if not node["Alive"] or not resources.get("CPU") or not _is_selected(node, address):
            continue
        gpus = int(resources.get("GPU", 0))
        slots = 1
        if address.per_gpu:
            slots = gpus
            gpus = 1
        for slot in range(slots):
            name = str(node["NodeName"])
            if slots > 1:
                name += f":{slot}"
            # All of the CPUs, so that Ray gives the node to no other user.
            cpus = resources["CPU"] / slots
            places.append(Place(name, str(node["NodeID"]), slot, cpus, gpus))
    return places


def require_places(ray: Any, address: ClusterAddress) -> list[Place]:
    """Return the places of the cluster. Raise FleetError if none exist."""
    places = list_places(ray, address)
    if not places:
        raise FleetError(
            "no node of the Ray cluster fits --on; `ray status` shows what its nodes have"
        )
    return places


def make_actor(ray: Any, kind: type[Any], place: Place, *arguments: object) -> Any:
    """Start an actor at this place and return it. Ray neither restarts it nor repeats its calls."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # Without it, an actor with no GPU would see none, even if engines shall find them by
    # themselves.
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


def get_first_line(error: BaseException) -> str:
    """Return the first line of the error's message, or the name of its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _is_selected(node: Mapping[str, Any], address: ClusterAddress) -> bool:
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
    """Set environment variables that are not set yet. Ray reads them when it is imported."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def _require_own_token(folder: Path) -> None:
    """Protect the cluster with a new token, since other users of this machine can reach its
    ports."""
    token = SafeFolder(folder).write("token", secrets.token_hex(32), 0o600)
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token))


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise FleetError(_NOT_INSTALLED) from None
    return ray


def _describe_cause(failure: BaseException) -> str:
    """Return the cause of a failed connection. Ray hides a refused token behind another error."""
    error: BaseException | None = failure
    while error is not None:
        if type(error).__name__ == "AuthenticationError":
            return (
                "it refuses the token; RAY_AUTH_TOKEN_PATH must name a file "
                "with the token that it was started with"
            )
        error = error.__cause__ or error.__context__
    return get_first_line(failure)

"""An engine that is not part of bitbench: its adapter, its environment, and a server that runs in there."""

import re
from pathlib import Path

from bitbench.engines.processes import free_port, make_random_key
from bitbench.engines.server import ServerInstance, ServerPlan
from bitbench.ports import NO_ARGUMENTS, NO_KV_CACHE_TYPES, Endpoint, Instance, Launch
from bitbench.records.trial import InstanceFacts
from bitbench.study.environment import Environment
from bitbench.study.quality import Scoring
from bitbench.study.study import EngineSetup
from bitbench.study.variant import Variant
from bitbench.study.workload import Workload

_HERE = Path(__file__).parent
_VERSION = re.compile(r"^serving with six (\S+)$", re.MULTILINE)


class ExampleEngine:
    """`bitbench.ports.Engine`: its server streams a word as often as it is asked for tokens."""

    name = "example"
    own_environment: Environment | None = Environment(
        name="example",
        locks={"cpu": _HERE / "example-cpu.txt"},
        import_check="import six",
        main_packages=("six",),
    )
    environment: str | None = "example"
    needs_model = False
    start_s = 1.0
    overhead_bytes = 30 * 2**20
    scoring: Scoring | None = None
    can_profile = False
    quick_args = NO_ARGUMENTS
    kv_cache_types = NO_KV_CACHE_TYPES

    def refuse(self, setup: EngineSetup, variant: Variant, workload: Workload) -> str | None:
        unknown = sorted(setup.args.keys() - {"word"})
        return f"the example engine has no argument {unknown[0]}; it has word." if unknown else None

    def can_freeze(self, setup: EngineSetup) -> bool:
        return True

    def start(self, launch: Launch) -> Instance:
        port, key = free_port(), make_random_key()
        word = str(launch.setup.args.get("word", "example"))
        return ServerInstance(
            ServerPlan(
                command=[str(launch.python), "-I", str(_HERE / "server.py"), str(port), word],
                env={**launch.setup.env, "EXAMPLE_API_KEY": key},
                endpoint=Endpoint(url=f"http://127.0.0.1:{port}", model="example", api_key=key),
                log_file=launch.log_file,
                read_facts=read_facts,
            )
        )


def read_facts(log: str) -> InstanceFacts:
    found = _VERSION.search(log)
    return InstanceFacts(engine_version=found[1] if found else None)

"""Which setups of an engine cannot differ in what a model says, since they differ only in what changes its speed."""

import json
from collections.abc import Mapping

from bitbench.measure.expand import as_arguments
from bitbench.ports import Engine
from bitbench.study.study import EngineSetup, Study


def alike_setups(study: Study, engines: Mapping[str, Engine]) -> tuple[tuple[str, ...], ...]:
    """Names, in the order of the study; a setup that is like no other is in none of them."""
    found: dict[str, list[str]] = {}
    for index, setup in enumerate(study.engines):
        engine = engines[setup.engine]
        found.setdefault(_deciding(as_arguments(setup, engine, index), engine), []).append(setup.name)
    return tuple(tuple(names) for names in found.values() if len(names) > 1)


def _deciding(setup: EngineSetup, engine: Engine) -> str:
    """All of a setup that may change what a model says: whatever the engine does not know to change only its speed."""
    spelled = {name.lstrip("-").replace("_", "-"): value for name, value in setup.args.items()}
    args = {name: value for name, value in spelled.items() if name not in engine.speed_only}
    return json.dumps([setup.engine, setup.python, setup.version, args, setup.env], sort_keys=True)

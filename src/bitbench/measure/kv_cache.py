"""A KV cache's type as a study names it, in the arguments of the engine that keeps the cache."""

from bitbench.ports import Engine
from bitbench.study.study import EngineSetup
from bitbench.util.errors import StudyFileError
from bitbench.util.near_miss import did_you_mean


def as_arguments(setup: EngineSetup, engine: Engine, index: int = 0) -> EngineSetup:
    """The setup, number `index` of its study, as the engine is started with it. Raises StudyFileError where the engine
    has no such type, or where the arguments choose one, too."""
    if setup.kv_cache is None:
        return setup
    types = engine.kv_cache_types
    if setup.kv_cache not in types:
        known = f"{did_you_mean(setup.kv_cache, types)}it has {', '.join(types)}" if types else "remove `kv_cache`"
        raise StudyFileError(
            f"{engine.name} has no KV cache type {setup.kv_cache}; {known}", ("engines", index, "kv_cache")
        )
    chosen = types[setup.kv_cache]
    for name in setup.args:
        if (option := name.lstrip("-").replace("_", "-")) in chosen:
            message = f"`kv_cache` chooses {option} already; keep one of the two"
            raise StudyFileError(message, ("engines", index, "args", name))
    return setup.model_copy(update={"args": {**chosen, **setup.args}})

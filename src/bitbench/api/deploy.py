"""The command that serves a config as it was measured."""

import shlex
from pathlib import Path

from bitbench.engines import registry
from bitbench.engines.environments.installed import python_in, python_of
from bitbench.measure.expand import as_arguments, loads_of
from bitbench.ports import Deployable, Launch
from bitbench.records.study_records import StudyRecords
from bitbench.study.plan import Config
from bitbench.study.secrets import is_secret
from bitbench.study.variant import Variant
from bitbench.util.errors import EngineEnvironmentError, ModelError, StudyFileError

_HOME = "$BITBENCH_HOME"


def deploy_words(records: StudyRecords, config: Config, home: Path) -> tuple[str, ...]:
    """Words for a shell, quoted, keys hidden, in the engine's environment below `home` where that is installed. None
    where the engine has no such command, has nothing to load, or is unknown here."""
    plan = records.plan
    setup = plan.study.engine(config.engine)
    try:
        engine = registry.engine(setup.engine)
    except StudyFileError:
        return ()
    if not isinstance(engine, Deployable):
        return ()
    capabilities = [
        known for accelerator in records.lock.host.accelerators if (known := accelerator.compute_capability)
    ]
    variant = plan.variant(config.variant)
    launch = Launch(
        setup=as_arguments(setup, engine),
        variant=variant,
        python=_python(setup.environment(engine.environment), variant, home),
        log_file=Path(),
        loads=loads_of(plan, setup, engine.scoring),
        seed=0,
        dtype=plan.chosen_dtypes.get(config),
        capability=min(capabilities, default=None),
    )
    try:
        variables, words = engine.deployment(launch)
    except ModelError:
        return ()
    shown = [f"{name}={'•••' if is_secret(name) else shlex.quote(value)}" for name, value in variables.items()]
    return (*shown, *map(_quoted, words))


def _python(environment: str | None, variant: Variant, home: Path) -> Path | None:
    """Where the variant is below a home that shared records do not name, so is the environment."""
    if environment is None:
        return None
    if variant.path is not None and variant.path.parts[0] == _HOME:
        return python_in(Path(_HOME) / "envs" / environment)
    try:
        return python_of(environment, home)
    except EngineEnvironmentError:
        return None


def _quoted(word: str) -> str:
    """A shell still fills in the home that shared records name instead of their own."""
    inside = word.removeprefix(_HOME)
    return shlex.quote(word) if inside == word else f'"{_HOME}"{shlex.quote(inside)}'

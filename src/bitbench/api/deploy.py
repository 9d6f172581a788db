"""The command that serves a config as it was measured."""

import shlex
from pathlib import Path

from bitbench.engines import registry
from bitbench.measure.expand import as_arguments, loads_of
from bitbench.ports import Deployable, Launch
from bitbench.records.study_records import StudyRecords
from bitbench.study.plan import Config
from bitbench.study.secrets import is_secret
from bitbench.util.errors import ModelError, StudyFileError

_HOME = "$BITBENCH_HOME"


def deploy_words(records: StudyRecords, config: Config) -> tuple[str, ...]:
    """Words for a shell, quoted, keys hidden. None where the engine has no such command, has nothing to load, or is
    not installed here."""
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
    launch = Launch(
        setup=as_arguments(setup, engine),
        variant=plan.variant(config.variant),
        python=None,
        log_file=Path(),
        loads=loads_of(plan, setup),
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


def _quoted(word: str) -> str:
    """A shell still fills in the home that shared records name instead of their own."""
    inside = word.removeprefix(_HOME)
    return shlex.quote(word) if inside == word else f'"{_HOME}"{shlex.quote(inside)}'

"""An engine that runs while a script measures."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bitbench.engines.environments import environment_python
from bitbench.engines.registry import engine
from bitbench.machine.workplace import get_default_home
from bitbench.models.library import resolve
from bitbench.ports import Endpoint, Launch, Load
from bitbench.study.study import EngineSetup
from bitbench.study.variant import NO_MODEL, Variant
from bitbench.util.units import show_about

START_TIMEOUT_S = 600.0
NOTHING = Variant(name=NO_MODEL, model=NO_MODEL, recipe=NO_MODEL)


def unquantized(model: str) -> Variant:
    found = resolve(model, get_default_home())
    return Variant(
        name=f"{found.name}/bf16", model=model, recipe="bf16", path=found.path, facts=found.facts
    )


@contextmanager
def running(
    setup: EngineSetup, load: Load, variant: Variant = NOTHING, *, core: int | None = None
) -> Iterator[Endpoint]:
    """Started with room for the load, and stopped in the end. `core`: the only one that it may use."""
    chosen = engine(setup.engine)
    python = (
        environment_python(chosen.environment, get_default_home()) if chosen.environment else None
    )
    if chosen.needs_model:
        print(
            f"{setup.name} starts, in about {show_about(chosen.start_s)}",
            file=sys.stderr,
            flush=True,
        )
    ours = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as folder:
        os.sched_setaffinity(0, ours if core is None else {core})  # whatever is started inherits it
        try:
            instance = chosen.start(
                Launch(setup, variant, python, Path(folder) / "engine.log", (load,), seed=0)
            )
        finally:
            os.sched_setaffinity(0, ours)
        try:
            yield instance.wait_ready(START_TIMEOUT_S)
        finally:
            instance.stop()

"""An engine that runs while a script measures."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bitbench.core.asked.study import EngineSetup
from bitbench.core.asked.workload import Workload
from bitbench.core.ports import Endpoint, Engine, Launch
from bitbench.core.recorded.variant import Variant

START_TIMEOUT_S = 600.0


@contextmanager
def running(
    chosen: Engine, setup: EngineSetup, variant: Variant, workload: Workload, python: Path | None
) -> Iterator[Endpoint]:
    """Started with room for the workload, and stopped in the end."""
    with tempfile.TemporaryDirectory() as folder:
        launch = Launch(
            setup=setup,
            variant=variant,
            python=python,
            log_file=Path(folder) / "engine.log",
            context_tokens=workload.context_tokens,
            concurrency=workload.concurrency,
            seed=0,
        )
        instance = chosen.start(launch)
        try:
            yield instance.wait_ready(START_TIMEOUT_S)
        finally:
            instance.stop()

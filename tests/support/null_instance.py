"""A null engine for tests, started and stopped like any engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bitbench.engines.null import NullEngine
from bitbench.ports import Endpoint, Instance, Launch, Load
from bitbench.study.study import Argument, EngineSetup
from bitbench.study.variant import NO_MODEL, Variant

NOTHING = Variant(name=NO_MODEL, model=NO_MODEL, recipe=NO_MODEL)


def start(args: dict[str, Argument], folder: Path, *, seed: int = 0) -> Instance:
    launch = Launch(
        setup=EngineSetup(name="null", engine="null", args=args),
        variant=NOTHING,
        python=None,
        log_file=folder / "null.log",
        loads=(Load(8, 1_000),),
        seed=seed,
    )
    return NullEngine().start(launch)


@contextmanager
def running(args: dict[str, Argument], folder: Path, *, seed: int = 0) -> Iterator[Endpoint]:
    instance = start(args, folder, seed=seed)
    try:
        yield instance.wait_ready(60.0)
    finally:
        instance.stop()

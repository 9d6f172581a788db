"""Engines by name. Built-in and third-party ones come in the same way: the entry point group `bitbench.engines`."""

from importlib.metadata import entry_points

from bitbench.core.ports import Engine
from bitbench.ground.errors import StudyFileError

GROUP = "bitbench.engines"


def engine_names() -> tuple[str, ...]:
    return tuple(sorted({point.name for point in entry_points(group=GROUP)}))


def engine(name: str) -> Engine:
    """An engine, ready to start instances; raises StudyFileError for a name that nobody offers."""
    points = entry_points(group=GROUP, name=name)
    if not points:
        raise StudyFileError(f"There is no engine called {name}; installed are: {', '.join(engine_names())}.")
    made: Engine = next(iter(points)).load()()
    return made

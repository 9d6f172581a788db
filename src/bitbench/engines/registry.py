"""Engines by name. Built-in and third-party ones come in the same way: the entry point group `bitbench.engines`."""

from importlib.metadata import EntryPoint, entry_points
from typing import cast

from bitbench.ports import Engine
from bitbench.study.study import Study
from bitbench.util.errors import PluginError, StudyFileError
from bitbench.util.plugins import load_plugin, warn_of_plugin
from bitbench.util.text import did_you_mean

GROUP = "bitbench.engines"


def engine(name: str) -> Engine:
    """An engine, ready to start instances; raises StudyFileError for one that does not exist or cannot be loaded."""
    points = _points()
    if name not in points:
        hint = did_you_mean(name, tuple(points))
        raise StudyFileError(f"unknown engine {name}; {hint}installed are {', '.join(points)}")
    try:
        return _load(points[name])
    except PluginError as error:
        raise StudyFileError(f"The engine {name} cannot be used. {error}") from error


def engines() -> dict[str, Engine]:
    """All that can be loaded, by name. One that cannot is skipped with a warning."""
    loaded: dict[str, Engine] = {}
    for name, point in _points().items():
        try:
            loaded[name] = _load(point)
        except PluginError as error:
            warn_of_plugin(str(error))
    return loaded


def registered_engines_of(study: Study) -> dict[str, Engine]:
    """By name; raises StudyFileError with the place in the study of one that does not exist or cannot be loaded."""
    found: dict[str, Engine] = {}
    for index, setup in enumerate(study.engines):
        if setup.engine not in found:
            try:
                found[setup.engine] = engine(setup.engine)
            except StudyFileError as error:
                raise StudyFileError(str(error), ("engines", index)) from error
    return found


def _points() -> dict[str, EntryPoint]:
    """By name, sorted; of two with one name the first. Reads the metadata of every installed package."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        found.setdefault(point.name, point)
    return dict(sorted(found.items()))


def _load(point: EntryPoint) -> Engine:
    return cast("Engine", load_plugin(point))

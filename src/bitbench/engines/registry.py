"""Engines by name. Built-in and third-party ones use the entry point group `bitbench.engines`."""

from importlib.metadata import EntryPoint, entry_points
from typing import cast

from bitbench.ports import Engine
from bitbench.study.study import Study
from bitbench.util.errors import PluginError, StudyFileError
from bitbench.util.plugins import load_plugin, warn_of_plugin
from bitbench.util.text import suggest_name

GROUP = "bitbench.engines"


def engine(name: str) -> Engine:
    """Return an engine that is ready to start instances.

    Raise StudyFileError if it does not exist or cannot be loaded.
    """
    points = _collect_entry_points()
    if name not in points:
        hint = suggest_name(name, tuple(points))
        raise StudyFileError(f"unknown engine {name}; {hint}installed are {', '.join(points)}")
    try:
        return _load_engine(points[name])
    except PluginError as error:
        raise StudyFileError(f"The engine {name} cannot be used. {error}") from error


def engines() -> dict[str, Engine]:
    """Return the engines by name. Skip an engine that cannot be loaded, with a warning."""
    loaded: dict[str, Engine] = {}
    for name, point in _collect_entry_points().items():
        try:
            loaded[name] = _load_engine(point)
        except PluginError as error:
            warn_of_plugin(str(error))
    return loaded


def load_study_engines(study: Study) -> dict[str, Engine]:
    """Return the study's engines by name.

    Raise StudyFileError, with its position in the study, for an engine that does not exist or
    cannot be loaded.
    """
    by_name: dict[str, Engine] = {}
    for index, setup in enumerate(study.engines):
        if setup.engine not in by_name:
            try:
                by_name[setup.engine] = engine(setup.engine)
            except StudyFileError as error:
                raise StudyFileError(str(error), ("engines", index)) from error
    return by_name


def _collect_entry_points() -> dict[str, EntryPoint]:
    """Return the entry points by name, sorted. The first of two with the same name counts.

    This reads the metadata of every installed package.
    """
    by_name: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        by_name.setdefault(point.name, point)
    return dict(sorted(by_name.items()))


def _load_engine(point: EntryPoint) -> Engine:
    return cast("Engine", load_plugin(point))

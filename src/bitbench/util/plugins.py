"""What other packages add through entry points. One that cannot be loaded is named, and stops nothing else."""

import warnings
from importlib.metadata import EntryPoint

from bitbench.util.errors import PluginError


class PluginWarning(UserWarning):
    """A package that adds to bitbench could not be loaded; the command line prints it as one line."""


def load_plugin(point: EntryPoint) -> object:
    """What the entry point names, called without arguments; raises PluginError, whatever the package's code raises."""
    try:
        return point.load()()
    except Exception as error:
        said = str(error).strip().partition("\n")[0]
        raise PluginError(_broken_plugin(point, f"{type(error).__name__}: {said}")) from error


def _broken_plugin(point: EntryPoint, cause: str) -> str:
    """Which package, what it adds to, what went wrong, what to do; the same for all that it offers there."""
    package = f"{point.dist.name} {point.dist.version}" if point.dist else point.module
    return f"The package {package} ({point.group}) cannot be loaded: {cause.rstrip('.')}; update or uninstall it."


def warn_of_plugin(sentence: str) -> None:
    """Once per process for the same sentence: the place that warns is always this one."""
    warnings.warn(sentence, PluginWarning, stacklevel=1)

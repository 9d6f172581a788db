"""Extensions of other packages, loaded through entry points. If one cannot be loaded, only it is
skipped.
"""

import warnings
from importlib.metadata import EntryPoint

from bitbench.util.errors import PluginError


class PluginWarning(UserWarning):
    """A warning about a package that could not be loaded, printed as one line."""


def load_plugin(point: EntryPoint) -> object:
    """Load an entry point and return the result of calling it. Raise PluginError for any error."""
    try:
        return point.load()()
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        cause = f"{type(error).__name__}: {first_line}"
        raise PluginError(_describe_failure(point, cause)) from error


def _describe_failure(point: EntryPoint, cause: str) -> str:
    """Return the package, what it extends, the cause and the remedy: the same for all its parts."""
    package = point.module
    if point.dist:
        package = f"{point.dist.name} {point.dist.version}"
    return (
        f"The package {package} ({point.group}) cannot be loaded: {cause.rstrip('.')}; update or "
        "uninstall it."
    )


def warn_of_plugin(sentence: str) -> None:
    """Warn once per process for the same sentence, since the warning comes from one line."""
    warnings.warn(sentence, PluginWarning, stacklevel=1)

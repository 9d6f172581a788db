"""Which tool a name means, and the one thing that each must do."""

from collections.abc import Callable
from importlib import import_module

from bitbench.exports.choices import Target
from bitbench.exports.content import ExportedStudy
from bitbench.ground.errors import ExportError

# Sends a study to an address (None: the tool's own default) and returns what the command prints. Raises ExportError.
Export = Callable[[ExportedStudy, str | None], str]


def exporter(target: Target) -> Export:
    """Imports the tool's own package, which is no part of bitbench's installation."""
    try:
        export: Export = import_module(f"bitbench.exports.to_{target.value}").export
    except ImportError as error:
        raise ExportError(
            f"`--to {target.value}` needs a package that is not installed ({error}): "
            f"pip install 'bitbench[{target.value}]' adds it."
        ) from error
    return export

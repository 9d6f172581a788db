"""Finds the code for a tool, and says what each must do."""

from collections.abc import Callable
from importlib import import_module

from bitbench.features.exports.types import ExportedStudy, ExportError, Target

# Sends a study to an address (None: the tool's own default) and returns what the command prints. Raises ExportError.
Export = Callable[[ExportedStudy, str | None], str]


def exporter(target: Target) -> Export:
    """Import the code for a tool, with the tool's own package, which is no part of bitbench's installation."""
    try:
        export: Export = import_module(f"bitbench.features.exports.to_{target.value}").export
    except ImportError as error:
        raise ExportError(
            f"`--to {target.value}` needs a package that is not installed ({error}): "
            f"pip install 'bitbench[{target.value}]' adds it."
        ) from error
    return export

"""The importer of bitbench modules by path, for workers in environments without bitbench.

Workers find it through sys.path. It imports nothing of bitbench.
"""

import importlib.util
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[2]


def make_importable() -> None:
    """Make the package around this file importable, and nothing next to it."""
    load_bitbench_module("bitbench", PACKAGE / "__init__.py", [str(PACKAGE)])


def load_bitbench_module(name: str, path: Path, folders: list[str] | None = None) -> None:
    """Load the module or package `name` from a file. `folders` contain the modules of a package."""
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folders)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception:
        del sys.modules[name]
        raise

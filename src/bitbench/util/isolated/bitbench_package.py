"""Imports packages from where they lie: bitbench is not installed where a worker runs.

Found through sys.path by the workers; imports nothing of ours.
"""

import importlib.util
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[2]


def make_importable() -> None:
    """The package around this file, and nothing that lies beside it."""
    load_bitbench_module("bitbench", PACKAGE / "__init__.py", [str(PACKAGE)])


def load_bitbench_module(name: str, path: Path, folders: list[str] | None = None) -> None:
    """The module or package `name` from this file; `folders` are where a package has its modules."""
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

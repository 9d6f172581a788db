"""Models for `bitbench model get`: downloads those of the catalog and of a hub; a source creates its own."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from bitbench.engines.environments.installed import list_environments, python_of
from bitbench.models import hub
from bitbench.models.catalog import CATALOG, find
from bitbench.models.fetch import ENVIRONMENT, fetch
from bitbench.models.hub_reference import HubReference, parse_reference
from bitbench.models.library import source_of
from bitbench.util.errors import ModelError

_NEEDS_THE_LIBRARY = (
    "Downloading from a hub needs huggingface_hub: install it with pip install 'bitbench[hub]', or create an "
    "environment that has it with: bitbench env create transformers"
)


def get_model(name: str, home: Path, *, on_step: Callable[[str], None], on_progress: hub.OnProgress) -> list[str]:
    """Download it, or have its source create it; what came of it, in sentences."""
    if (source := source_of(name)) is not None:
        return source.make(name, home, on_progress)
    reference = None if name in CATALOG else parse_reference(name)
    if reference is not None:
        return _from_hub(reference, home, on_progress)
    find(name)  # raises with the names that exist
    path = fetch(name, home, python=python_of(ENVIRONMENT, home), on_step=on_step)
    return [f"{name} is at {path}"]


def hub_python(home: Path) -> Path:
    """A Python with huggingface_hub: ours with the extra `hub`, else that of any environment; raises ModelError."""
    if find_spec("huggingface_hub") is not None:
        return Path(sys.executable)
    for installed in list_environments(home):
        if installed.complete and "huggingface-hub" in installed.versions:
            return python_of(installed.name, home)
    raise ModelError(_NEEDS_THE_LIBRARY)


def _from_hub(reference: HubReference, home: Path, on_progress: hub.OnProgress) -> list[str]:
    got = hub.download(reference, home, python=hub_python(home), on_progress=on_progress)
    said = [f"{reference} is at {got.model.path} (commit {got.model.commit})"]
    if got.from_cache:
        said.append("The hub was not asked: this is what the shared cache has of it.")
    if got.moved_from is not None:
        said.append(
            f"{reference.revision} has moved since the last download; studies that name {reference} now mean the new "
            f"commit. To keep the old one, write {reference.repository}@{got.moved_from}."
        )
    return said

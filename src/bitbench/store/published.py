"""An imported kernel table and operator profile on disk: published/kernels.json and published/profile.json."""

from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from bitbench.core.recorded.published import PublishedKernels, PublishedProfile
from bitbench.ground.errors import StoreError
from bitbench.store.folder import write_atomically

P = TypeVar("P", PublishedKernels, PublishedProfile)
_FILES = {PublishedKernels: "kernels.json", PublishedProfile: "profile.json"}


def write_published(folder: Path, content: PublishedKernels | PublishedProfile) -> Path:
    path = _path(folder, type(content))
    write_atomically(path, content.model_dump_json(indent=1) + "\n")
    return path


def read_published(folder: Path, kind: type[P]) -> P | None:
    """None where nothing of this kind was imported into the folder."""
    path = _path(folder, kind)
    if not path.is_file():
        return None
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise StoreError(
            f"{path} is damaged and cannot be read: {error.errors()[0]['msg']}; import it again"
        ) from error


def _path(folder: Path, kind: type[PublishedKernels] | type[PublishedProfile]) -> Path:
    return folder / "published" / _FILES[kind]

"""An imported kernel table and operator profile on disk: published/kernels.json and published/profile.json."""

from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from bitbench.records.published import PublishedKernels, PublishedProfile
from bitbench.util.errors import StoreError
from bitbench.util.safe_files import SafeFolder, read_bytes

P = TypeVar("P", PublishedKernels, PublishedProfile)
_FILES = {PublishedKernels: "kernels.json", PublishedProfile: "profile.json"}


def write_published(folder: Path, content: PublishedKernels | PublishedProfile) -> Path:
    return SafeFolder(folder).write(_name(type(content)), content.model_dump_json(indent=1) + "\n")


def read_published(folder: Path, kind: type[P]) -> P | None:
    """None where nothing of this kind was imported into the folder."""
    path = folder / _name(kind)
    if not path.is_file():
        return None
    try:
        return kind.model_validate_json(read_bytes(path))
    except ValidationError as error:
        raise StoreError(
            f"{path} is damaged and cannot be read: {error.errors()[0]['msg']}; import it again"
        ) from error


def _name(kind: type[PublishedKernels] | type[PublishedProfile]) -> str:
    return f"published/{_FILES[kind]}"

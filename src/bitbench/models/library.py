"""The models in the cache: which exist, how one is downloaded, and what a study's name for one stands for."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bitbench.core.recorded.variant import ModelFacts
from bitbench.ground.errors import ModelError
from bitbench.ground.safe_files import SafeFolder, read_bytes
from bitbench.ground.tensor_files import StoredTensor
from bitbench.models.catalog import CATALOG, CatalogModel, linear_layers
from bitbench.models.fetch import ENVIRONMENT, fetch
from bitbench.models.folder import MANIFEST, hash_file, read_facts, weight_files

__all__ = ["ENVIRONMENT", "ExpectedModel", "KnownModel", "ResolvedModel", "fetch", "list_models", "look_up", "resolve"]

_HASH_CACHE = "models/hashes.json"
# Weights, their configuration and the tokenizer decide what runs; a README beside them does not.
_HASHED = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")


@dataclass(frozen=True)
class ResolvedModel:
    name: str  # the catalog's, or the folder's own
    path: Path
    facts: ModelFacts
    weight_bytes: int
    content_hash: str


@dataclass(frozen=True)
class ExpectedModel:
    """A model of the catalog that is not downloaded: enough of it to plan with, and nothing that could run."""

    name: str
    facts: ModelFacts
    weight_bytes: int
    layers: Mapping[str, StoredTensor]  # the linear ones
    path: None = None
    content_hash: None = None


@dataclass(frozen=True)
class KnownModel:
    """A line of `bitbench model list`. `path` is None while it is not downloaded."""

    name: str
    description: str
    licence: str
    path: Path | None = None
    size_bytes: int | None = None
    parameters: int | None = None


def list_models(home: Path) -> tuple[KnownModel, ...]:
    """Every model of the catalog, downloaded or not."""
    return tuple(_known(model, home) for model in CATALOG.values())


def resolve(reference: str, home: Path) -> ResolvedModel:
    """A downloaded catalog name, or a folder with config.json and safetensors; raises ModelError."""
    folder = _folder_of(reference, home)
    return ResolvedModel(
        name=folder.name,
        path=folder,
        facts=read_facts(folder),
        weight_bytes=sum(path.stat().st_size for path in weight_files(folder)),
        content_hash=_hash_of(folder, home),
    )


def look_up(reference: str, home: Path) -> ResolvedModel | ExpectedModel:
    """As `resolve`; a catalog model that is not downloaded is what the catalog knows of it."""
    model = CATALOG.get(reference)
    if model is None or _is_downloaded(model, home):
        return resolve(reference, home)
    return ExpectedModel(model.name, model.facts, model.weight_bytes, linear_layers(model.facts))


def _is_downloaded(model: CatalogModel, home: Path) -> bool:
    return (home.absolute() / "models" / model.name / MANIFEST).exists()


def _known(model: CatalogModel, home: Path) -> KnownModel:
    folder = home.absolute() / "models" / model.name
    if not _is_downloaded(model, home):
        return KnownModel(model.name, model.description, model.licence)
    size_bytes = sum(path.stat().st_size for path in folder.iterdir())
    return KnownModel(
        model.name, model.description, model.licence, folder, size_bytes, parameters=read_facts(folder).parameters
    )


def _folder_of(reference: str, home: Path) -> Path:
    if reference in CATALOG:
        folder = home.absolute() / "models" / reference
        if not _is_downloaded(CATALOG[reference], home):
            raise ModelError(
                f"The model {reference} is not downloaded; download it with: bitbench model get {reference}"
            )
        return folder
    folder = Path(reference).expanduser().absolute()
    if not (folder / "config.json").is_file():
        state = "has no config.json" if folder.is_dir() else "is not a folder"
        raise ModelError(
            f"{reference} {state} and is not a known model name ({', '.join(CATALOG)}); "
            "give one of these names or the folder of a Hugging Face checkpoint."
        )
    return folder


def _hash_of(folder: Path, home: Path) -> str:
    """sha256 over the names and contents of what is run; the files' own hashes are remembered in `home`."""
    cache = _read_cache(home / _HASH_CACHE)
    known = dict(cache)
    files = sorted({path for pattern in _HASHED for path in folder.glob(pattern) if path.name != MANIFEST})
    digest = hashlib.sha256()
    for path in files:
        state = path.stat()
        key = f"{path}|{state.st_size}|{state.st_mtime_ns}"
        if key not in known:
            known[key] = hash_file(path)
        digest.update(f"{path.name}\0{known[key]}\n".encode())
    if known != cache:
        SafeFolder(home).write(_HASH_CACHE, json.dumps(known, indent=1))
    return digest.hexdigest()


def _read_cache(cache_file: Path) -> dict[str, str]:
    try:
        content: dict[str, str] = json.loads(read_bytes(cache_file))
    except (OSError, ValueError):
        return {}
    return content

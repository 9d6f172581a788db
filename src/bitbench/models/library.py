"""The models in the cache: the list, what a study's name stands for, and planning facts of models
that are not downloaded."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from bitbench.feature import collect_offers, handle_feature_errors
from bitbench.models import hub
from bitbench.models.catalog import CATALOG, CatalogModel, get_catalog_model_folder, is_downloaded
from bitbench.models.folder import (
    MANIFEST,
    compute_file_hashes,
    list_weight_files,
    read_model_facts,
)
from bitbench.models.hub import HubReference, parse_hub_reference
from bitbench.models.quantized import Numbers, Quantization, read_quantization
from bitbench.models.shapes import SHAPES, Shape, find_model_shape
from bitbench.study.model_cost import estimate_weight_bytes
from bitbench.study.variant import ModelFacts
from bitbench.util.errors import ModelError
from bitbench.util.model_files import StoredTensor, read_model_json

# The endings of Qwen's quantized checkpoints, which other publishers use too.
_PROMISED = {
    "-AWQ": Quantization("awq", Numbers(4), group_size=128),
    "-GPTQ-Int4": Quantization("gptq", Numbers(4), group_size=128),
    "-GPTQ-Int8": Quantization("gptq", Numbers(8), group_size=128),
    "-FP8": Quantization("fp8", Numbers(8, "float"), Numbers(8, "float"), block=(128, 128)),
}


def _find_published_model(reference: HubReference) -> tuple[Shape, Quantization | None] | None:
    """Return a model's shape, and the quantization that its name promises, if any.

    None if the shape is not in the table.
    """
    if reference.file is not None:
        return None
    if (shape := find_model_shape(reference.repository)) is not None:
        return shape, None
    for ending, quantization in _PROMISED.items():
        base = find_model_shape(reference.repository.removesuffix(ending))
        if base is not None:
            return base, quantization
    return None


GGUF = "gguf"
# Weights, their configuration and the tokenizer decide what runs, but a README does not.
_HASHED = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")


@dataclass(frozen=True)
class ResolvedModel:
    name: str  # from the catalog, the repository or the folder
    path: Path
    facts: ModelFacts
    weight_bytes: int
    content_hash: str
    commit: str | None = None  # of the hub's repository that it was downloaded from
    quantization: Quantization | None = None  # None: it is not quantized


@dataclass(frozen=True)
class ExpectedModel:
    """A model that is not downloaded or created yet: it can be planned with, but cannot run."""

    name: str
    facts: ModelFacts
    weight_bytes: int
    layers: Mapping[str, StoredTensor]  # at least the linear ones
    path: None = None
    content_hash: None = None
    commit: None = None
    quantization: Quantization | None = None  # as its name promises


@dataclass(frozen=True)
class KnownModel:
    """A line of `bitbench model list`. `path` is None until the model is downloaded."""

    name: str
    description: str
    licence: str
    path: Path | None = None
    size_bytes: int | None = None
    parameters: int | None = None


class ModelSource(Protocol):
    """A source that creates models named PREFIX:NAME. A feature offers it under the prefix.

    `reference` is the whole name. Methods raise ModelError if the source has no such model.
    """

    @property
    def models(self) -> str:
        """All models that it can create, in one line."""

    def find(self, reference: str, home: Path) -> Path | None:
        """Return the folder of the model's checkpoint, or None if it is not created yet."""

    def expect(self, reference: str) -> ExpectedModel: ...

    def make(self, reference: str, home: Path, on_progress: hub.OnProgress) -> list[str]:
        """Create the model if it does not exist, and return sentences about the result."""

    def made(self, home: Path) -> Iterable[KnownModel]:
        """Return all models that were created."""


def find_source(reference: str) -> ModelSource | None:
    """Return the source of a model, or None if the name has no source's prefix."""
    offer = collect_offers("model_sources").get(reference.partition(":")[0])
    return offer.load()() if offer is not None and ":" in reference else None


def sources() -> Iterator[ModelSource]:
    for offer in collect_offers("model_sources").values():
        with handle_feature_errors(offer.feature):
            yield offer.load()()


def list_models(home: Path) -> tuple[KnownModel, ...]:
    """Return the catalog's models, downloaded or not, then created ones, then those from a hub."""
    models = [_summarize_catalog_model(model, home) for model in CATALOG.values()]
    for source in sources():
        models += source.made(home)
    models += map(_summarize_hub_model, hub.list_downloaded(home))
    return tuple(models)


def resolve(reference: str, home: Path) -> ResolvedModel:
    """Return a downloaded model, or a folder with config.json and safetensors.

    Raise ModelError if the model is neither, or is a GGUF file.
    """
    downloaded = _resolve_downloaded_model(reference, home)
    if downloaded is None:
        folder = _find_model_folder(reference, home)
    elif downloaded.reference.file:
        raise ModelError(
            f"{reference} is a GGUF file; name its original model under `models`, "
            f"and under `variants` {{of: ORIGINAL, checkpoint: '{reference}'}}."
        )
    else:
        folder = downloaded.path
    model = ResolvedModel(
        name=folder.name,
        path=folder,
        facts=_read_facts(folder),
        weight_bytes=sum(path.stat().st_size for path in list_weight_files(folder)),
        content_hash=_hash_model_folder(folder, home),
        quantization=read_quantization(folder),
    )
    return _add_source(model, downloaded)


def resolve_gguf(reference: str, home: Path) -> ResolvedModel | None:
    """Return a downloaded GGUF file, a GGUF file, or a folder of them. None for other models.

    It needs no config.json.
    """
    downloaded = _resolve_downloaded_model(reference, home)
    path = downloaded.path if downloaded else Path(reference).expanduser().absolute()
    files = [path] if path.is_file() else sorted(path.glob("*.gguf"))
    if not files or (path / "config.json").exists():
        return None
    if any(file.suffix != ".gguf" for file in files):
        return None
    hashes = sorted(_collect_content_hashes(files, home).values())
    model = ResolvedModel(
        name=path.stem,
        path=path,
        facts=ModelFacts(quantization=GGUF),
        weight_bytes=sum(file.stat().st_size for file in files),
        content_hash=hashlib.sha256("".join(hashes).encode()).hexdigest(),
    )
    return _add_source(model, downloaded)


def _add_source(model: ResolvedModel, downloaded: hub.HubModel | None) -> ResolvedModel:
    """Return the model with the name and commit of the hub's model, if it was downloaded."""
    if downloaded is None:
        return model
    return replace(model, name=downloaded.reference.name, commit=downloaded.commit)


def _resolve_downloaded_model(reference: str, home: Path) -> hub.HubModel | None:
    """Return the model that was downloaded from a hub under this name, or None.

    Names of the catalog and existing paths have precedence: for them, return None.
    """
    hub_reference = parse_hub_reference(reference)
    if hub_reference is None or reference in CATALOG or Path(reference).exists():
        return None
    return hub.find_hub_model(hub_reference, home)


def look_up_model(reference: str, home: Path) -> ResolvedModel | ExpectedModel:
    """Return the model as `resolve` does, or planning facts if it is not on this machine.

    The facts come from the model's source, the catalog or the table of shapes.
    """
    return _find_expected_model(reference, home) or resolve(reference, home)


def _find_expected_model(reference: str, home: Path) -> ExpectedModel | None:
    """Return the facts of a model that is not here, or None if it is here or of unknown size."""
    if (source := find_source(reference)) is not None:
        return None if source.find(reference, home) else source.expect(reference)
    if (model := CATALOG.get(reference)) is not None:
        if is_downloaded(model, home):
            return None
        tensors = SHAPES[model.name].tensors
        return ExpectedModel(model.name, model.facts, model.weight_bytes, tensors)
    hub_reference = parse_hub_reference(reference)
    if hub_reference is None or (published := _find_published_model(hub_reference)) is None:
        return None
    if Path(reference).exists() or hub.find_hub_model(hub_reference, home):
        return None
    shape, quantization = published
    facts = shape.published_facts
    weight_bytes = shape.weight_bytes
    if quantization is not None:
        facts = facts.model_copy(update={"quantization": quantization.method})
        weight_bytes = estimate_weight_bytes(facts, quantization.form) or weight_bytes
    return ExpectedModel(
        hub_reference.name, facts, weight_bytes, shape.tensors, quantization=quantization
    )


def _summarize_catalog_model(model: CatalogModel, home: Path) -> KnownModel:
    if not is_downloaded(model, home):
        return KnownModel(model.name, model.description, model.licence)
    folder = get_catalog_model_folder(model, home)
    size_bytes = sum(path.stat().st_size for path in folder.iterdir())
    return KnownModel(
        model.name,
        model.description,
        model.licence,
        folder,
        size_bytes,
        parameters=read_model_facts(folder).parameters,
    )


def _summarize_hub_model(model: hub.HubModel) -> KnownModel:
    size_bytes = sum(path.stat().st_size for path in model.path.iterdir())
    parameters: int | None = None
    with suppress(ModelError):  # a GGUF file has no config.json
        parameters = read_model_facts(model.path).parameters
    return KnownModel(
        str(model.reference),
        f"commit {model.commit[:12]} of {model.reference.url}",
        "",
        model.path,
        size_bytes,
        parameters,
    )


def _find_model_folder(reference: str, home: Path) -> Path:
    """Return the folder of a model's checkpoint, or raise ModelError if it is missing."""
    if (source := find_source(reference)) is not None:
        if (created := source.find(reference, home)) is None:
            raise ModelError(
                f"{reference} is not created; create it with: bitbench model get {reference}"
            )
        return created
    if (model := CATALOG.get(reference)) is not None:
        if not is_downloaded(model, home):
            raise ModelError(
                f"The model {reference} is not downloaded; "
                f"download it with: bitbench model get {reference}"
            )
        return get_catalog_model_folder(model, home)
    folder = Path(reference).expanduser().absolute()
    if (folder / "config.json").is_file():
        return folder
    if parse_hub_reference(reference) and not folder.is_dir():
        raise ModelError(
            f"{reference} is neither a folder nor downloaded; "
            f"download it with: bitbench model get {reference}"
        )
    names = ["one of these names", "a hub id (ORG/NAME)"]
    names += [f"{prefix}:NAME" for prefix in collect_offers("model_sources")]
    state = "has no config.json" if folder.is_dir() else "is not a folder"
    raise ModelError(
        f"{reference} {state} and is not a known model name ({', '.join(CATALOG)}); "
        f"give {', '.join(names)} or the folder of a Hugging Face checkpoint."
    )


def _read_facts(folder: Path) -> ModelFacts:
    """Return a checkpoint's facts, with the earlier rounding that the catalog knows of its source.

    The checkpoint itself does not record that rounding.
    """
    facts = read_model_facts(folder)
    manifest = folder / MANIFEST
    source = read_model_json(manifest).get("source_sha256") if manifest.exists() else None
    rounded_before: str | None = None
    for model in CATALOG.values():
        if model.gguf_sha256 == source:
            rounded_before = model.facts.rounded_before
            break
    return facts.model_copy(update={"rounded_before": rounded_before})


def _hash_model_folder(folder: Path, home: Path) -> str:
    """Return a sha256 over names and contents of the files that decide what runs.

    The hashes of the files are remembered in `home`.
    """
    files: set[Path] = set()
    for pattern in _HASHED:
        files.update(folder.glob(pattern))
    files.discard(folder / MANIFEST)
    digest = hashlib.sha256()
    for path, content_hash in _collect_content_hashes(sorted(files), home).items():
        digest.update(f"{path.name}\0{content_hash}\n".encode())
    return digest.hexdigest()


def _collect_content_hashes(files: Iterable[Path], home: Path) -> dict[Path, str]:
    """Return the hash of each file: the hub's if it was downloaded from one, else its sha256."""
    from_hub = {path: hub.read_hub_file_hashes(path.parent).get(path.name) for path in files}
    missing = [path for path, content_hash in from_hub.items() if content_hash is None]
    computed = compute_file_hashes(missing, home)
    return {path: content_hash or computed[path] for path, content_hash in from_hub.items()}

"""The models in the cache: which exist, how one is downloaded, what a study's name for one stands for, and what is
known of one that is not downloaded."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bitbench.feature import feature_errors_as_warnings, offered
from bitbench.models import hub
from bitbench.models.catalog import CATALOG, CatalogModel, catalog_model_folder, is_downloaded
from bitbench.models.folder import MANIFEST, read_model_facts, remembered_hashes, weight_files
from bitbench.models.hub import HubReference, parse_hub_reference
from bitbench.models.quantized import Numbers, Quantization, read_quantization
from bitbench.models.shapes import SHAPES, Shape, known_model_shape
from bitbench.study.model_cost import expected_weight_bytes
from bitbench.study.variant import ModelFacts
from bitbench.util.errors import ModelError
from bitbench.util.model_files import StoredTensor, read_model_json

# How Qwen names its own quantized checkpoints, and others after it.
_PROMISED = {
    "-AWQ": Quantization("awq", Numbers(4), group_size=128),
    "-GPTQ-Int4": Quantization("gptq", Numbers(4), group_size=128),
    "-GPTQ-Int8": Quantization("gptq", Numbers(8), group_size=128),
    "-FP8": Quantization("fp8", Numbers(8, "float"), Numbers(8, "float"), block=(128, 128)),
}


def _published_model(reference: HubReference) -> tuple[Shape, Quantization | None] | None:
    """Its shape, and how it is quantized if its name says that it is; None where the shape is not in the table."""
    if reference.file is not None:
        return None
    if (shape := known_model_shape(reference.repository)) is not None:
        return shape, None
    for ending, quantization in _PROMISED.items():
        base = known_model_shape(reference.repository.removesuffix(ending))
        if base is not None:
            return base, quantization
    return None


GGUF = "gguf"
# Weights, their configuration and the tokenizer decide what runs; a README beside them does not.
_HASHED = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")


@dataclass(frozen=True)
class ResolvedModel:
    name: str  # the catalog's, the repository's, or the folder's own
    path: Path
    facts: ModelFacts
    weight_bytes: int
    content_hash: str
    commit: str | None = None  # of the hub's repository that it came from
    quantization: Quantization | None = None  # how it is stored; None: it is not quantized


@dataclass(frozen=True)
class ExpectedModel:
    """A model that is not downloaded, or not created: enough of it to plan with, and nothing that could run."""

    name: str
    facts: ModelFacts
    weight_bytes: int
    layers: Mapping[str, StoredTensor]  # the linear ones, at least
    path: None = None
    content_hash: None = None
    commit: None = None
    quantization: Quantization | None = None  # as its name promises


@dataclass(frozen=True)
class KnownModel:
    """A line of `bitbench model list`. `path` is None while it is not downloaded."""

    name: str
    description: str
    licence: str
    path: Path | None = None
    size_bytes: int | None = None
    parameters: int | None = None


class ModelSource(Protocol):
    """Creates models that are named PREFIX:NAME; offered by a feature under the prefix. `reference` is the whole name,
    and ModelError says that there is no such model."""

    @property
    def models(self) -> str:
        """All that it can create, in a line."""

    def find(self, reference: str, home: Path) -> Path | None:
        """Return the folder of its checkpoint; None: it is not created."""

    def expect(self, reference: str) -> ExpectedModel: ...

    def make(self, reference: str, home: Path, on_progress: hub.OnProgress) -> list[str]:
        """Create it, if it does not exist; what came of it, in sentences."""

    def made(self, home: Path) -> Iterable[KnownModel]:
        """All that exist."""


def source_of(reference: str) -> ModelSource | None:
    """None for a name without the prefix of a source."""
    offer = offered("model_sources").get(reference.partition(":")[0])
    return offer.load()() if offer is not None and ":" in reference else None


def sources() -> Iterator[ModelSource]:
    for offer in offered("model_sources").values():
        with feature_errors_as_warnings(offer.feature):
            yield offer.load()()


def list_models(home: Path) -> tuple[KnownModel, ...]:
    """Every model of the catalog, downloaded or not, what sources created, and what was downloaded from a hub."""
    return (
        *(_known(model, home) for model in CATALOG.values()),
        *(model for source in sources() for model in source.made(home)),
        *map(_known_from_hub, hub.list_downloaded(home)),
    )


def resolve(reference: str, home: Path) -> ResolvedModel:
    """A downloaded model of the catalog or a hub, or a folder with config.json and safetensors; raises ModelError."""
    downloaded = _resolve_downloaded_model(reference, home)
    folder = downloaded.path if downloaded else _folder_of(reference, home)
    if downloaded and downloaded.reference.file:
        raise ModelError(
            f"{reference} is a GGUF file; name its original model under `models`, and under `variants` "
            f"{{of: ORIGINAL, checkpoint: '{reference}'}}."
        )
    return ResolvedModel(
        name=downloaded.reference.name if downloaded else folder.name,
        path=folder,
        facts=_facts_of(folder),
        weight_bytes=sum(path.stat().st_size for path in weight_files(folder)),
        content_hash=_hash_of(folder, home),
        commit=downloaded.commit if downloaded else None,
        quantization=read_quantization(folder),
    )


def resolve_gguf(reference: str, home: Path) -> ResolvedModel | None:
    """A downloaded GGUF file, a file or a folder with one, which needs no config.json; None for any other model."""
    downloaded = _resolve_downloaded_model(reference, home)
    place = downloaded.path if downloaded else Path(reference).expanduser().absolute()
    files = [place] if place.is_file() else sorted(place.glob("*.gguf"))
    if (
        not files
        or any(file.suffix != ".gguf" for file in files)
        or (place / "config.json").exists()
    ):
        return None
    digest = hashlib.sha256("".join(sorted(_content_hashes(files, home).values())).encode())
    return ResolvedModel(
        name=downloaded.reference.name if downloaded else place.stem,
        path=place,
        facts=ModelFacts(quantization=GGUF),
        weight_bytes=sum(file.stat().st_size for file in files),
        content_hash=digest.hexdigest(),
        commit=downloaded.commit if downloaded else None,
    )


def _resolve_downloaded_model(reference: str, home: Path) -> hub.HubModel | None:
    """What was downloaded under this name; None for a name of the catalog and a path that exists: they go first."""
    named = parse_hub_reference(reference)
    if named is None or reference in CATALOG or Path(reference).exists():
        return None
    return hub.find_hub_model(named, home)


def look_up_model(reference: str, home: Path) -> ResolvedModel | ExpectedModel:
    """As `resolve`; a model that is not here is what its source, the catalog or the table of shapes knows of it."""
    return _expected(reference, home) or resolve(reference, home)


def _expected(reference: str, home: Path) -> ExpectedModel | None:
    """None for a model that is here, and for one of unknown size."""
    if (source := source_of(reference)) is not None:
        return None if source.find(reference, home) else source.expect(reference)
    if (model := CATALOG.get(reference)) is not None:
        if is_downloaded(model, home):
            return None
        return ExpectedModel(
            model.name, model.facts, model.weight_bytes, SHAPES[model.name].tensors
        )
    named = parse_hub_reference(reference)
    published = _published_model(named) if named else None
    if (
        named is None
        or published is None
        or Path(reference).exists()
        or hub.find_hub_model(named, home)
    ):
        return None
    shape, quantization = published
    facts = shape.published_facts
    if quantization is None:
        return ExpectedModel(named.name, facts, shape.weight_bytes, shape.tensors)
    facts = facts.model_copy(update={"quantization": quantization.method})
    weight_bytes = expected_weight_bytes(facts, quantization.form) or shape.weight_bytes
    return ExpectedModel(named.name, facts, weight_bytes, shape.tensors, quantization=quantization)


def _known(model: CatalogModel, home: Path) -> KnownModel:
    if not is_downloaded(model, home):
        return KnownModel(model.name, model.description, model.licence)
    folder = catalog_model_folder(model, home)
    size_bytes = sum(path.stat().st_size for path in folder.iterdir())
    return KnownModel(
        model.name,
        model.description,
        model.licence,
        folder,
        size_bytes,
        parameters=read_model_facts(folder).parameters,
    )


def _known_from_hub(model: hub.HubModel) -> KnownModel:
    size_bytes = sum(path.stat().st_size for path in model.path.iterdir())
    try:
        parameters = read_model_facts(model.path).parameters
    except ModelError:  # a GGUF file has no config.json
        parameters = None
    return KnownModel(
        str(model.reference),
        f"commit {model.commit[:12]} of {model.reference.url}",
        "",
        model.path,
        size_bytes,
        parameters,
    )


def _folder_of(reference: str, home: Path) -> Path:
    if (source := source_of(reference)) is not None:
        if (created := source.find(reference, home)) is None:
            raise ModelError(
                f"{reference} is not created; create it with: bitbench model get {reference}"
            )
        return created
    if (model := CATALOG.get(reference)) is not None:
        if not is_downloaded(model, home):
            raise ModelError(
                f"The model {reference} is not downloaded; download it with: bitbench model get {reference}"
            )
        return catalog_model_folder(model, home)
    folder = Path(reference).expanduser().absolute()
    if not (folder / "config.json").is_file():
        if parse_hub_reference(reference) and not folder.is_dir():
            raise ModelError(
                f"{reference} is neither a folder nor downloaded; download it with: bitbench model get {reference}"
            )
        named = [f"{prefix}:NAME" for prefix in offered("model_sources")]
        state = "has no config.json" if folder.is_dir() else "is not a folder"
        raise ModelError(
            f"{reference} {state} and is not a known model name ({', '.join(CATALOG)}); "
            f"give {', '.join(('one of these names', 'a hub id (ORG/NAME)', *named))} or the folder of a Hugging Face "
            "checkpoint."
        )
    return folder


def _facts_of(folder: Path) -> ModelFacts:
    """Add what a checkpoint cannot say of itself, and the catalog knows of its source: what was rounded before."""
    facts, manifest = read_model_facts(folder), folder / MANIFEST
    source = read_model_json(manifest).get("source_sha256") if manifest.exists() else None
    rounded = (
        model.facts.rounded_before for model in CATALOG.values() if model.gguf_sha256 == source
    )
    return facts.model_copy(update={"rounded_before": next(rounded, None)})


def _hash_of(folder: Path, home: Path) -> str:
    """sha256 over the names and contents of what is run; the files' own hashes are remembered in `home`."""
    files = sorted(
        {path for pattern in _HASHED for path in folder.glob(pattern) if path.name != MANIFEST}
    )
    digest = hashlib.sha256()
    for path, content in _content_hashes(files, home).items():
        digest.update(f"{path.name}\0{content}\n".encode())
    return digest.hexdigest()


def _content_hashes(files: Iterable[Path], home: Path) -> dict[Path, str]:
    """Return a hash of each file: the hub's own where it was downloaded from one, else its sha256."""
    known = {path: hub.hub_file_hashes(path.parent).get(path.name) for path in files}
    computed = remembered_hashes([path for path, content in known.items() if content is None], home)
    return {path: content or computed[path] for path, content in known.items()}

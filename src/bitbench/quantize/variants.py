"""Variants on disk: `<home>/variants/MODEL--RECIPE--HASH/`, where HASH covers all inputs.

Each is created once, by one process at a time: in a temporary folder that is renamed when it is
complete, so no partial variant is ever visible. The process that creates a variant holds its lock.
A second one waits and then uses the result.
"""

import fcntl
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import IO

from pydantic import ValidationError

from bitbench.quantize import catalog
from bitbench.quantize.backends import OnProgress, QuantizeProgress, Work, find_maker
from bitbench.quantize.calibration import CalibrationText, read_calibration
from bitbench.quantize.checkpoint import (
    MAKE_ROOM,
    refuse_group_size_that_does_not_fit,
    refuse_unsuitable_checkpoint,
    refuse_without_room,
)
from bitbench.quantize.manifest import (
    CalibrationFacts,
    Manifest,
    WorkerFacts,
    compute_stored_bits,
    hash_checkpoint_content,
    hash_checkpoint_files,
    weight_bytes,
)
from bitbench.study.base import RECORDED
from bitbench.study.recipe import Backend, Recipe
from bitbench.util.errors import QuantizeError, StoreError
from bitbench.util.files import SafeFolder, read_bytes
from bitbench.util.model_files import read_safetensors_headers


@contextmanager
def lock_variant(
    variants: Path, name: str, on_wait: Callable[[], None] = lambda: None
) -> Iterator[int]:
    """Wait for the lock of a variant and yield its descriptor.

    A child process that inherits the descriptor holds the lock too.
    """
    with _open_lock_file(variants, name) as lock:
        if not _take_lock(lock):
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


@contextmanager
def _try_hold(variants: Path, name: str) -> Iterator[bool]:
    """Yield True, with the lock held, if no other process holds it, else False."""
    with _open_lock_file(variants, name) as lock:
        yield _take_lock(lock)


def _open_lock_file(variants: Path, name: str) -> IO[bytes]:
    """Open a lock file. It is never removed: a waiting process would then hold another lock."""
    return SafeFolder(variants.parent).open_to_append(f"{variants.name}/.locks/{name}.lock")


def _take_lock(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# Increase it when a recipe gives other weights without a change of packages, for example after a
# new default.
WORKER_REVISION = 1
_MANIFEST = "manifest.json"
_UNFINISHED = ".making-"
_FULL_DISK = re.compile(r"No space left on device|Disk quota exceeded")


@dataclass(frozen=True)
class SourceModel:
    name: str
    path: Path
    content_hash: str


@dataclass(frozen=True)
class VariantRequest:
    """One variant, described by all inputs that decide its weights."""

    model: SourceModel
    recipe: Recipe
    versions: Mapping[str, str]
    calibration: CalibrationText | None
    seed: int

    @property
    def key(self) -> str:
        """A hash of the inputs that decide the weights.

        Names, descriptions and the path of the calibration text do not count, but the text does.
        Fields at their defaults are left out, so that new fields change no keys.
        """
        recipe = self.recipe.model_dump(
            mode="json",
            exclude_defaults=True,
            exclude={"name": True, "description": True, "calibration": {"source"}},
        )
        calibration_hash: str | None = None
        seed: int | None = None
        if self.calibration is None:
            recipe.pop("calibration", None)
        else:
            calibration_hash = self.calibration.content_hash
            seed = self.seed
        content = {
            "model": self.model.content_hash,
            "recipe": recipe,
            "calibration": calibration_hash,
            "seed": seed,
            "versions": dict(self.versions),
            "worker": WORKER_REVISION,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def folder_name(self) -> str:
        return f"{self.model.name}--{self.recipe.name}--{self.key[:12]}"


@dataclass(frozen=True)
class MadeVariant:
    folder: Path
    manifest: Manifest

    @property
    def path(self) -> Path:
        """The checkpoint, which an engine loads."""
        return self.folder / "checkpoint"

    @property
    def content_hash(self) -> str:
        return self.manifest.content_hash

    @property
    def weight_bytes(self) -> int:
        return self.manifest.weight_bytes


def request_variant(
    model: SourceModel,
    recipe: Recipe,
    *,
    versions: Mapping[str, str],
    calibration: Path | None = None,
    seed: int = 0,
) -> VariantRequest:
    """Return a request for a variant.

    `versions` are the packages of the recipe's environment. `calibration` overrides the text that
    the recipe names.
    """
    packages = find_maker(recipe).telling_packages
    relevant = {name: versions[name] for name in packages if name in versions}
    text: CalibrationText | None = None
    if recipe.needs_calibration:
        text = read_calibration(calibration or recipe.calibration.source)
    return VariantRequest(model, recipe, relevant, text, seed)


def find_variant_on_disk(request: VariantRequest, home: Path) -> MadeVariant | None:
    return _read_variant(_get_variants_folder(home) / request.folder_name)


def ensure_variant(
    request: VariantRequest, *, home: Path, python: Path, on_progress: OnProgress = lambda _: None
) -> MadeVariant:
    """Return the variant, which is created unless it exists.

    Raise ModelError or RecipeError before any work if the recipe cannot compress this model.
    """

    def report_wait() -> None:
        on_progress(QuantizeProgress("waiting: another process is creating it"))

    if (existing := find_variant_on_disk(request, home)) is not None:
        return existing
    refuse_impossible_variant(request.model.path, request.recipe)
    variants = _get_variants_folder(home)
    try:
        SafeFolder(home).make_folder(variants.name)
        _remove_leftovers(variants)
        with lock_variant(variants, request.folder_name, on_wait=report_wait) as lock_fd:
            if (existing := find_variant_on_disk(request, home)) is not None:
                return existing
            return _make_variant(request, variants, python, lock_fd, on_progress)
    except StoreError as error:
        raise QuantizeError(str(error)) from error
    except OSError as error:
        cause = f"{request.folder_name} could not be written: {error}"
        raise QuantizeError(_add_advice(cause)) from error


def refuse_impossible_variant(model: Path, recipe: Recipe) -> None:
    """Raise ModelError or RecipeError if the model, or this recipe for it, is unsuitable."""
    refuse_unsuitable_checkpoint(model)
    refuse_group_size_that_does_not_fit(recipe, read_safetensors_headers(model))


def list_variants(home: Path) -> tuple[MadeVariant, ...]:
    """Return all complete variants, sorted by their folders' names."""
    variants = []
    for folder in sorted(_get_variants_folder(home).glob("*--*--*")):
        if not folder.name.startswith(".") and (variant := _read_variant(folder)) is not None:
            variants.append(variant)
    return tuple(variants)


def get_variant(name: str, home: Path) -> MadeVariant:
    """Return the variant with this folder name, or with the only one that begins like this.

    Raise QuantizeError if the variant is missing, or if several begin like this.
    """
    matching = [variant for variant in list_variants(home) if variant.folder.name.startswith(name)]
    exact = [variant for variant in matching if variant.folder.name == name]
    candidates = exact or matching
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        names = ", ".join(variant.folder.name for variant in matching)
        raise QuantizeError(f"{name} is ambiguous: {names}; give more of the name.")
    raise QuantizeError(f"No variant {name}; `bitbench variant list` shows the existing ones.")


def remove_variant(variant: MadeVariant) -> None:
    """Remove a variant. It is renamed first, so that a kill leaves no incomplete variant."""
    variants = variant.folder.parent
    name = variant.folder.name
    with lock_variant(variants, name):
        doomed = f"{_UNFINISHED}{name}"
        SafeFolder(variants).remove_folder(doomed)
        variant.folder.rename(variants / doomed)
        SafeFolder(variants).remove_folder(doomed)


def _make_variant(
    request: VariantRequest, variants: Path, python: Path, lock_fd: int, on_progress: OnProgress
) -> MadeVariant:
    maker = find_maker(request.recipe)
    refuse_without_room(variants, maker.room * weight_bytes(request.model.path))
    began = monotonic()
    log_name = f"{request.folder_name}.log"
    with _make_unfinished_folder(variants, request.folder_name) as folder:
        work = Work(
            request.model.path,
            request.recipe,
            request.calibration,
            request.seed,
            folder,
            python,
            lock_fd,
            _find_origin(request, variants),
        )
        try:
            facts = maker.compress(work, on_progress)
            on_progress(QuantizeProgress("checking the checkpoint"))
            _refuse_broken(work, facts)
        except QuantizeError as error:
            log = _keep_log(work, variants, log_name)
            raise QuantizeError(_add_advice(error.cause), log) from error
        on_progress(QuantizeProgress("writing the manifest"))
        manifest = _make_manifest(request, work, facts, monotonic() - began)
        for leftover in folder.glob("*.json*"):  # the job and its text
            leftover.unlink()
        SafeFolder(folder).write(_MANIFEST, manifest.model_dump_json(indent=2) + "\n")
        target = variants / request.folder_name
        # A folder without a readable manifest is not a variant.
        SafeFolder(variants).remove_folder(target.name)
        folder.rename(target)
    (variants / log_name).unlink(missing_ok=True)
    return MadeVariant(target, manifest)


def _refuse_broken(work: Work, facts: WorkerFacts) -> None:
    """Raise QuantizeError if the new checkpoint is broken. GGUF and OpenVINO files are not read."""
    # This module needs numpy, which planning does not.
    from bitbench.quantize.defects import MOST_TOLD, refuse_broken

    if facts.unreached:
        experts = ", ".join(facts.unreached[:MOST_TOLD])
        if len(facts.unreached) > MOST_TOLD:
            experts += f" and {len(facts.unreached) - MOST_TOLD:,} more"
        raise QuantizeError(
            f"calibration never reached {experts}; give more text, or other, with --calibration"
        )
    if any(work.checkpoint.glob("*.safetensors")):
        # Backends other than llm-compressor may store dense tensors in forms of their own.
        rounds_all = work.recipe.backend == Backend.LLMCOMPRESSOR
        ignored = work.recipe.ignored if rounds_all else None
        refuse_broken(work.checkpoint, ignored)


def _find_origin(request: VariantRequest, variants: Path) -> Path | None:
    """Return the checkpoint that this recipe's backend starts from, or None without one.

    It is a variant of the same model, made by the same packages.
    """
    name = find_maker(request.recipe).origin
    if name is None:
        return None
    origin = replace(request, recipe=catalog.find_recipe(name), calibration=None)
    variant = _read_variant(variants / origin.folder_name)
    return variant.path if variant else None


def _make_manifest(
    request: VariantRequest, work: Work, facts: WorkerFacts, seconds: float
) -> Manifest:
    hashes = hash_checkpoint_files(work.checkpoint)
    calibration = request.calibration and CalibrationFacts(
        description=request.calibration.description,
        content_hash=request.calibration.content_hash,
        samples=facts.samples,
        tokens=facts.tokens,
    )
    files = (path for path in work.checkpoint.rglob("*") if path.is_file())
    return Manifest(
        key=request.key,
        model=request.model.name,
        model_hash=request.model.content_hash,
        recipe=request.recipe,
        calibration=calibration,
        seed=request.seed,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(seconds, 1),
        work=facts,
        bits_per_weight=compute_stored_bits(request.model.path, work.checkpoint, request.recipe),
        weight_bytes=weight_bytes(work.checkpoint),
        size_bytes=sum(path.stat().st_size for path in files),
        content_hash=hash_checkpoint_content(hashes),
        files=hashes,
    )


@contextmanager
def _make_unfinished_folder(variants: Path, name: str) -> Iterator[Path]:
    """Yield an empty folder, and remove it afterwards unless it was renamed."""
    parent = SafeFolder(variants)
    unfinished = f"{_UNFINISHED}{name}"
    parent.remove_folder(unfinished)
    try:
        yield parent.make_folder(unfinished)
    finally:
        parent.remove_folder(unfinished)


def _remove_leftovers(variants: Path) -> None:
    """Remove unfinished folders whose lock no process holds: their creators are dead."""
    for folder in variants.glob(f"{_UNFINISHED}*"):
        with _try_hold(variants, folder.name.removeprefix(_UNFINISHED)) as is_held:
            if is_held:
                SafeFolder(variants).remove_folder(folder.name)


def _add_advice(cause: str) -> str:
    """Return the cause, with advice if the disk was full: it may have filled up since the check."""
    return f"{cause}; {MAKE_ROOM}" if _FULL_DISK.search(cause) else cause


def _keep_log(work: Work, variants: Path, name: str) -> Path | None:
    """Copy the backend's log out of the unfinished folder and return its path, or None.

    The backend may have written no log, or the disk may be full. The original error matters more.
    """
    try:
        log = work.log_file.read_text(encoding="utf-8", errors="replace")
        return SafeFolder(variants).write(name, log)
    except (OSError, StoreError):
        return None


def _read_variant(folder: Path) -> MadeVariant | None:
    """Return the variant in a folder, or None if it has no readable manifest."""
    try:
        content = read_bytes(folder / _MANIFEST)
        return MadeVariant(folder, Manifest.model_validate_json(content, context=RECORDED))
    except (OSError, ValidationError):
        return None


def _get_variants_folder(home: Path) -> Path:
    return home.absolute() / "variants"

"""Variants on disk: `<home>/variants/MODEL--RECIPE--HASH/`, addressed by what they are made from, created once, by
one maker at a time.

A variant is created in a temporary folder and renamed when it is complete, so no partial variant is ever visible. The
process that creates it holds its lock; a second one waits and then uses the result.
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
from bitbench.quantize.backends import OnProgress, QuantizeProgress, Work, maker_of
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
    manifest_content_hash,
    manifest_file_hashes,
    stored_bits,
    weight_bytes,
)
from bitbench.study.base import RECORDED
from bitbench.study.recipe import Backend, Recipe
from bitbench.util.errors import QuantizeError, StoreError
from bitbench.util.files import SafeFolder, read_bytes
from bitbench.util.model_files import read_safetensors_headers


@contextmanager
def hold_variant(
    place: Path, name: str, on_wait: Callable[[], None] = lambda: None
) -> Iterator[int]:
    """Waits for the lock of `name`; yields its descriptor, which a child process may inherit to hold it as well."""
    with _open(place, name) as lock:
        if not _take(lock):
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


@contextmanager
def _try_hold(place: Path, name: str) -> Iterator[bool]:
    """True where no other process held it."""
    with _open(place, name) as lock:
        yield _take(lock)


def _open(place: Path, name: str) -> IO[bytes]:
    """Lock files stay: removing one while another process waits on it would give two holders."""
    return SafeFolder(place.parent).open_to_append(f"{place.name}/.locks/{name}.lock")


def _take(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# Counts up when the same recipe would give other weights although no package has changed, as after a new default.
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
    """One variant, by all that decides what it becomes."""

    model: SourceModel
    recipe: Recipe
    versions: Mapping[str, str]
    calibration: CalibrationText | None
    seed: int

    @property
    def key(self) -> str:
        """What the recipe is called, says about itself and reads its text from does not count; that text does. Nor does
        a field at its default: one that is added later changes no key."""
        asked = self.recipe.model_dump(
            mode="json",
            exclude_defaults=True,
            exclude={"name": True, "description": True, "calibration": {"source"}},
        )
        if self.calibration is None:
            asked.pop("calibration", None)
        content = {
            "model": self.model.content_hash,
            "recipe": asked,
            "calibration": self.calibration.content_hash if self.calibration else None,
            "seed": self.seed if self.calibration else None,
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
        """The checkpoint: what an engine loads."""
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
    """`versions`: packages of the recipe's environment. `calibration` goes before the source that the recipe names."""
    telling = {
        name: versions[name] for name in maker_of(recipe).telling_packages if name in versions
    }
    text = (
        read_calibration(calibration or recipe.calibration.source)
        if recipe.needs_calibration
        else None
    )
    return VariantRequest(model, recipe, telling, text, seed)


def find_variant_on_disk(wanted: VariantRequest, home: Path) -> MadeVariant | None:
    return _read(_variants(home) / wanted.folder_name)


def ensure_variant(
    wanted: VariantRequest, *, home: Path, python: Path, on_progress: OnProgress = lambda _: None
) -> MadeVariant:
    """The variant, created now unless it exists. Raises before any work where it is known not to be possible."""
    if (there := find_variant_on_disk(wanted, home)) is not None:
        return there
    refuse_impossible_variant(wanted.model.path, wanted.recipe)
    place = _variants(home)
    try:
        SafeFolder(home).make_folder(place.name)
        _remove_leftovers(place)
        with hold_variant(
            place,
            wanted.folder_name,
            on_wait=lambda: on_progress(
                QuantizeProgress("waiting: another process is creating it")
            ),
        ) as lock_fd:
            if (there := find_variant_on_disk(wanted, home)) is not None:
                return there
            return _make(wanted, place, python, lock_fd, on_progress)
    except StoreError as error:
        raise QuantizeError(str(error)) from error
    except OSError as error:
        raise QuantizeError(
            _with_advice(f"{wanted.folder_name} could not be written: {error}")
        ) from error


def refuse_impossible_variant(model: Path, recipe: Recipe) -> None:
    """Raises ModelError or RecipeError where this model cannot be compressed, or not by this recipe."""
    refuse_unsuitable_checkpoint(model)
    refuse_group_size_that_does_not_fit(recipe, read_safetensors_headers(model))


def list_variants(home: Path) -> tuple[MadeVariant, ...]:
    folders = sorted(
        path for path in _variants(home).glob("*--*--*") if not path.name.startswith(".")
    )
    return tuple(variant for folder in folders if (variant := _read(folder)) is not None)


def get_variant(name: str, home: Path) -> MadeVariant:
    """By its folder's name, or by enough of its beginning to be the only one."""
    there = list_variants(home)
    matching = [variant for variant in there if variant.folder.name.startswith(name)]
    exact = [variant for variant in matching if variant.folder.name == name]
    if len(exact or matching) == 1:
        return (exact or matching)[0]
    if matching:
        names = ", ".join(variant.folder.name for variant in matching)
        raise QuantizeError(f"{name} is ambiguous: {names}; give more of the name.")
    raise QuantizeError(f"No variant {name}; `bitbench variant list` shows the existing ones.")


def remove_variant(variant: MadeVariant) -> None:
    """Renamed before it is deleted, so that a kill in between leaves no variant with files missing."""
    place, name = variant.folder.parent, variant.folder.name
    with hold_variant(place, name):
        doomed = f"{_UNFINISHED}{name}"
        SafeFolder(place).remove_folder(doomed)
        variant.folder.rename(place / doomed)
        SafeFolder(place).remove_folder(doomed)


def _make(
    wanted: VariantRequest, place: Path, python: Path, lock_fd: int, on_progress: OnProgress
) -> MadeVariant:
    maker = maker_of(wanted.recipe)
    refuse_without_room(place, maker.room * weight_bytes(wanted.model.path))
    began = monotonic()
    with _unfinished_folder(place, wanted.folder_name) as folder:
        work = Work(
            wanted.model.path,
            wanted.recipe,
            wanted.calibration,
            wanted.seed,
            folder,
            python,
            lock_fd,
            _origin(wanted, place),
        )
        try:
            facts = maker.compress(work, on_progress)
            on_progress(QuantizeProgress("checking the checkpoint"))
            _refuse_broken(work, facts)
        except QuantizeError as error:
            log = _keep_log(work, place, f"{wanted.folder_name}.log")
            raise QuantizeError(_with_advice(error.cause), log) from error
        on_progress(QuantizeProgress("writing the manifest"))
        manifest = _describe(wanted, work, facts, monotonic() - began)
        for leftover in folder.glob("*.json*"):  # the job and its text
            leftover.unlink()
        SafeFolder(folder).write(_MANIFEST, manifest.model_dump_json(indent=2) + "\n")
        target = place / wanted.folder_name
        SafeFolder(place).remove_folder(
            target.name
        )  # a folder without a manifest that can be read is no variant
        folder.rename(target)
    (place / f"{wanted.folder_name}.log").unlink(missing_ok=True)
    return MadeVariant(target, manifest)


def _refuse_broken(work: Work, facts: WorkerFacts) -> None:
    """Raises QuantizeError before anything uses it. GGUF and OpenVINO files are not looked into."""
    from bitbench.quantize.defects import (
        MOST_TOLD,
        refuse_broken,
    )  # it needs numpy, and planning does not

    if facts.unreached:
        shown = ", ".join(facts.unreached[:MOST_TOLD])
        more = (
            f" and {len(facts.unreached) - MOST_TOLD:,} more"
            if len(facts.unreached) > MOST_TOLD
            else ""
        )
        raise QuantizeError(
            f"calibration never reached {shown}{more}; give more text, or other, with --calibration"
        )
    if any(work.checkpoint.glob("*.safetensors")):
        rounds_all = (
            work.recipe.backend == Backend.LLMCOMPRESSOR
        )  # others may keep dense tensors in forms of their own
        refuse_broken(work.checkpoint, work.recipe.ignored if rounds_all else None)


def _origin(wanted: VariantRequest, place: Path) -> Path | None:
    """The checkpoint of the same model, by the same packages, that this recipe's backend starts from."""
    name = maker_of(wanted.recipe).origin
    if name is None:
        return None
    there = _read(
        place / replace(wanted, recipe=catalog.find_recipe(name), calibration=None).folder_name
    )
    return there.path if there else None


def _describe(wanted: VariantRequest, work: Work, facts: WorkerFacts, seconds: float) -> Manifest:
    files = manifest_file_hashes(work.checkpoint)
    calibration = wanted.calibration and CalibrationFacts(
        description=wanted.calibration.description,
        content_hash=wanted.calibration.content_hash,
        samples=facts.samples,
        tokens=facts.tokens,
    )
    return Manifest(
        key=wanted.key,
        model=wanted.model.name,
        model_hash=wanted.model.content_hash,
        recipe=wanted.recipe,
        calibration=calibration,
        seed=wanted.seed,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(seconds, 1),
        work=facts,
        bits_per_weight=stored_bits(wanted.model.path, work.checkpoint, wanted.recipe),
        weight_bytes=weight_bytes(work.checkpoint),
        size_bytes=sum(
            path.stat().st_size for path in work.checkpoint.rglob("*") if path.is_file()
        ),
        content_hash=manifest_content_hash(files),
        files=files,
    )


@contextmanager
def _unfinished_folder(place: Path, name: str) -> Iterator[Path]:
    """A fresh folder that is gone afterwards, unless it was renamed."""
    files, unfinished = SafeFolder(place), f"{_UNFINISHED}{name}"
    files.remove_folder(unfinished)
    try:
        yield files.make_folder(unfinished)
    finally:
        files.remove_folder(unfinished)


def _remove_leftovers(place: Path) -> None:
    """Unfinished folders whose lock no process holds: their creators are dead."""
    for folder in place.glob(f"{_UNFINISHED}*"):
        with _try_hold(place, folder.name.removeprefix(_UNFINISHED)) as got_it:
            if got_it:
                SafeFolder(place).remove_folder(folder.name)


def _with_advice(cause: str) -> str:
    """The disk may have been filled since it was looked at, by this work or by another."""
    return f"{cause}; {MAKE_ROOM}" if _FULL_DISK.search(cause) else cause


def _keep_log(work: Work, place: Path, name: str) -> Path | None:
    try:
        return SafeFolder(place).write(
            name, work.log_file.read_text(encoding="utf-8", errors="replace")
        )
    except (
        OSError,
        StoreError,
    ):  # it wrote none, or the disk is full: the error at hand matters more
        return None


def _read(folder: Path) -> MadeVariant | None:
    try:
        return MadeVariant(
            folder, Manifest.model_validate_json(read_bytes(folder / _MANIFEST), context=RECORDED)
        )
    except (OSError, ValidationError):
        return None


def _variants(home: Path) -> Path:
    return home.absolute() / "variants"

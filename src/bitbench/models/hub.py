"""Models of a hub in `<home>/models/hub/ORG--NAME/COMMIT/`: links to exactly the needed files of the shared cache."""

import json
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from bitbench.models.folder import MANIFEST
from bitbench.models.hashes import remembered_hashes
from bitbench.models.hub_files import HubFile, choose_files, find_damage, listed_files
from bitbench.models.hub_reference import HubReference
from bitbench.util.child_environment import tool_environment
from bitbench.util.errors import ModelError
from bitbench.util.isolated.job_process import WorkerFailed, run_short_job
from bitbench.util.model_json import read_object
from bitbench.util.safe_files import SafeFolder, read_bytes

FOLDER = "models/hub"
_REVISIONS = "revisions.json"  # what a branch or a tag meant when it was downloaded
_INDEX = "model.safetensors.index.json"
_WORKER = Path(__file__).parent / "workers" / "hub_worker.py"
_COMMIT = re.compile(r"[0-9a-f]{7,64}")

OnProgress = Callable[[int, int], None]  # bytes that have arrived, of how many


@dataclass(frozen=True)
class HubModel:
    """A downloaded model. `commit` is what its revision means here."""

    reference: HubReference
    path: Path
    commit: str


@dataclass(frozen=True)
class Download:
    model: HubModel
    moved_from: str | None = None  # the commit that the same revision meant before
    from_cache: bool = False  # the hub was not asked, or could not be


def download(
    reference: HubReference, home: Path, *, python: Path, on_progress: OnProgress = lambda _done, _total: None
) -> Download:
    """The model as the hub has it now. `python` has huggingface_hub; what it has in its cache is not fetched again."""
    if reference.is_pinned and (there := find(reference, home)) is not None:
        return Download(there)
    began = time.monotonic()
    asked = {"repository": reference.repository, "revision": reference.revision}
    listed = _ask(python, {"task": "list", **asked})
    commit = str(listed["commit"])
    if not _COMMIT.fullmatch(commit):
        raise ModelError(f"{reference.url} names a commit that cannot be one; check HF_ENDPOINT.")
    before = _revisions(reference, home).get(reference.revision)
    model = HubModel(reference, _folder(reference, commit, home), commit)
    if not _is_complete(model.path):
        files = _chosen(listed, reference)
        job = {"task": "download", **asked, "commit": commit, "files": [asdict(file) for file in files]}
        fetched = _ask(python, job, on_progress)["paths"]
        paths = {file: Path(fetched[file.name]) for file in files}
        _check(paths, reference, home)
        _link(paths, model, home, time.monotonic() - began)
    _remember_revision(reference, commit, home)
    return Download(model, before if before not in (None, commit) else None, bool(listed["from_cache"]))


def download_bytes(reference: HubReference, *, python: Path) -> int:
    """What a download would bring at most, as the hub lists it now. Raises ModelError."""
    asked = {"repository": reference.repository, "revision": reference.revision}
    listed = _ask(python, {"task": "list", **asked})
    return sum(file.size_bytes for file in _chosen(listed, reference))


def find(reference: HubReference, home: Path) -> HubModel | None:
    """As it was downloaded; needs no network."""
    commit = reference.revision if reference.is_pinned else _revisions(reference, home).get(reference.revision)
    if commit is None or not _COMMIT.fullmatch(commit):
        return None
    folder = _folder(reference, commit, home)
    return HubModel(reference, folder, commit) if _is_complete(folder) else None


def list_downloaded(home: Path) -> tuple[HubModel, ...]:
    """Each by the name that finds it: by its commit where the branch has moved on."""
    found = []
    for manifest in sorted((home.absolute() / FOLDER).glob(f"*/*/{MANIFEST}")):
        content = _read(manifest)
        reference = HubReference(content["repository"], content["revision"], content["file"])
        if _revisions(reference, home).get(reference.revision) != content["commit"]:
            reference = replace(reference, revision=content["commit"])
        if _is_complete(manifest.parent):
            found.append(HubModel(reference, manifest.parent, content["commit"]))
    return tuple(found)


def _ask(python: Path, job: Mapping[str, Any], on_progress: OnProgress = lambda _done, _total: None) -> dict[str, Any]:
    """What the worker returns. It has all of our variables: the token, proxies, HF_HOME, HF_ENDPOINT."""
    last: dict[str, Any] = {}
    try:
        for last in run_short_job(_WORKER, python, job, env=tool_environment(hub_token=True)):
            if last["event"] == "progress":
                on_progress(last["done"], last["total"])
    except WorkerFailed as failure:
        raise ModelError(failure.cause or str(failure)) from None
    return last


def _chosen(listed: Mapping[str, Any], reference: HubReference) -> tuple[HubFile, ...]:
    try:
        files = listed_files(listed["files"])
    except ValueError as error:
        raise ModelError(f"What {reference.url} lists is not a list of files: {error}; check HF_ENDPOINT.") from None
    try:
        return choose_files(files, reference)
    except ModelError as error:
        if not listed["from_cache"]:
            raise
        raise ModelError(
            f"The shared cache has only a part of {reference}, and the hub was not asked; repeat the command with a "
            f"network ({error})"
        ) from error


def _check(paths: Mapping[HubFile, Path], reference: HubReference, home: Path) -> None:
    """Against the hub's hashes, and against the list of files that the weights say they are divided into."""
    hashes = remembered_hashes(paths.values(), home)
    for file, path in paths.items():
        if damage := find_damage(file, path, hashes[path]):
            path.resolve().unlink()
            path.unlink(missing_ok=True)
            raise ModelError(
                f"{file.name} of {reference} is damaged: {damage}. It was removed; repeat the command to download it."
            )
    by_name = {file.name: path for file, path in paths.items()}
    if _INDEX in by_name and (lacking := _named_weights(by_name[_INDEX]) - by_name.keys()):
        raise ModelError(
            f"{reference} is incomplete: {_INDEX} names {', '.join(sorted(lacking)[:3])}, which is missing there "
            "(or, without a network, in the cache)."
        )


def _named_weights(index: Path) -> set[str]:
    named = read_object(index).get("weight_map")
    return {name for name in named.values() if isinstance(name, str)} if isinstance(named, dict) else set()


def _link(paths: Mapping[HubFile, Path], model: HubModel, home: Path, seconds: float) -> None:
    """It gets its name once it is complete."""
    files = SafeFolder(home)
    place = files.make_folder(str(model.path.parent.relative_to(home.absolute())))
    with tempfile.TemporaryDirectory(prefix=".linking-", dir=place) as scratch:
        folder = SafeFolder(Path(scratch)).make_folder("model")
        for file, path in paths.items():
            (folder / PurePosixPath(file.name).name).symlink_to(path.resolve())
        SafeFolder(folder).write(MANIFEST, json.dumps(_manifest(list(paths), model, seconds), indent=2) + "\n")
        files.remove_folder(str(model.path.relative_to(home.absolute())))  # its links lead nowhere any more
        folder.rename(model.path)


def _manifest(files: Sequence[HubFile], model: HubModel, seconds: float) -> dict[str, Any]:
    return {
        "name": model.reference.name,
        "repository": model.reference.repository,
        "revision": model.reference.revision,
        "file": model.reference.file,
        "commit": model.commit,
        "source": model.reference.url,
        "seconds": round(seconds, 1),
        "files": {PurePosixPath(file.name).name: asdict(file) for file in files},
    }


def _is_complete(folder: Path) -> bool:
    """Whether each file is still in the cache that its link leads to."""
    manifest = folder / MANIFEST
    return manifest.exists() and all((folder / name).exists() for name in _read(manifest)["files"])


def _folder(reference: HubReference, commit: str, home: Path) -> Path:
    chosen = f"--{PurePosixPath(reference.file).name}" if reference.file else ""
    return _repository_folder(reference, home) / f"{commit}{chosen}"


def _repository_folder(reference: HubReference, home: Path) -> Path:
    return home.absolute() / FOLDER / reference.repository.replace("/", "--")


def _revisions(reference: HubReference, home: Path) -> dict[str, str]:
    file = _repository_folder(reference, home) / _REVISIONS
    return _read(file) if file.exists() else {}


def _remember_revision(reference: HubReference, commit: str, home: Path) -> None:
    known = _revisions(reference, home)
    if known.get(reference.revision) != commit:
        content = json.dumps({**known, reference.revision: commit}, indent=1) + "\n"
        SafeFolder(_repository_folder(reference, home)).write(_REVISIONS, content)


def _read(file: Path) -> dict[str, Any]:
    """Of our own folder; raises ModelError where it was changed to what is no JSON."""
    try:
        content: dict[str, Any] = json.loads(read_bytes(file))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{file} cannot be read ({error}); remove {file.parent} and download the model again."
        ) from error
    return content

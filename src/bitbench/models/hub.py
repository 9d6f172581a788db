"""Models of a hub: how a study names one, and the download to
`<home>/models/hub/ORG--NAME/COMMIT/`, links into the shared cache."""

import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from bitbench.models.folder import MANIFEST
from bitbench.util.child_processes import tool_child_variables
from bitbench.util.errors import ModelError
from bitbench.util.files import SafeFolder, read_bytes
from bitbench.util.isolated.job_process import WorkerFailed, run_short_job

DEFAULT_REVISION = "main"
_DEFAULT_ENDPOINT = "https://huggingface.co"
_PART = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}"
_PATH = r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,95}(?:/[A-Za-z0-9_][A-Za-z0-9_.+-]{0,95}){0,4}"  # leads to no folder above
_REFERENCE = re.compile(
    rf"(?P<repository>{_PART}/{_PART})(?:@(?P<revision>{_PATH}))?(?::(?P<file>{_PATH}))?"
)
_WHOLE_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubReference:
    repository: str  # "Qwen/Qwen3-4B"
    revision: str = DEFAULT_REVISION  # a branch, a tag or a commit
    file: str | None = None  # of a GGUF repository: a file's name, or its type, such as Q4_K_M

    @property
    def name(self) -> str:
        """Without whose it is: "Qwen3-4B"."""
        return self.repository.partition("/")[2]

    @property
    def is_pinned(self) -> bool:
        """A commit never means anything else; a branch or a tag may move."""
        return _WHOLE_COMMIT.fullmatch(self.revision) is not None

    @property
    def url(self) -> str:
        endpoint = os.environ.get("HF_ENDPOINT", _DEFAULT_ENDPOINT).rstrip("/")
        return f"{endpoint}/{self.repository}/tree/{self.revision}"

    def __str__(self) -> str:
        revision = "" if self.revision == DEFAULT_REVISION else f"@{self.revision}"
        return f"{self.repository}{revision}{f':{self.file}' if self.file else ''}"


def parse_hub_reference(text: str) -> HubReference | None:
    """None where it cannot be the name of a model on a hub."""
    found = _REFERENCE.fullmatch(text)
    if found is None:
        return None
    return HubReference(found["repository"], found["revision"] or DEFAULT_REVISION, found["file"])


FOLDER = "models/hub"
_WORKER = Path(__file__).parent / "workers" / "hub_worker.py"
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_FILE = re.compile(_PATH)

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
    reference: HubReference,
    home: Path,
    *,
    python: Path,
    on_progress: OnProgress = lambda _done, _total: None,
) -> Download:
    """Return the model as the hub has it now. `python` has huggingface_hub; what its cache has is not fetched again."""
    if reference.is_pinned and (there := find_hub_model(reference, home)) is not None:
        return Download(there)
    began = time.monotonic()
    got = _ask(python, {"task": "get", **asdict(reference)}, on_progress)
    commit, files = str(got["commit"]), got["files"]
    if not _COMMIT.fullmatch(commit) or not all(_FILE.fullmatch(file["name"]) for file in files):
        raise ModelError(
            f"{reference.url} names a commit or a file that cannot be one; check HF_ENDPOINT."
        )
    before = _newest_manifest(reference, home)
    model = HubModel(reference, _folder(reference, commit, home), commit)
    _link(files, Path(got["folder"]), model, home, time.monotonic() - began)
    moved_from = before["commit"] if before is not None and before["commit"] != commit else None
    return Download(model, moved_from, bool(got["from_cache"]))


def hub_download_bytes(reference: HubReference, *, python: Path) -> int:
    """Return what a download would bring at most, as the hub lists it now. Raises ModelError."""
    return int(_ask(python, {"task": "size", **asdict(reference)})["size_bytes"])


def hub_file_hashes(folder: Path) -> dict[str, str]:
    """Return what the hub calls the content of each file of a downloaded model; empty for any other folder."""
    manifest = folder / MANIFEST
    files = _read(manifest).get("files", {}) if manifest.exists() else {}
    return {
        name: file["hash"]
        for name, file in files.items()
        if isinstance(file, dict) and file.get("hash")
    }


def find_hub_model(reference: HubReference, home: Path) -> HubModel | None:
    """As it was downloaded; needs no network."""
    newest = None if reference.is_pinned else _newest_manifest(reference, home)
    commit = str(newest["commit"]) if newest else reference.revision
    if not _COMMIT.fullmatch(commit):
        return None
    folder = _folder(reference, commit, home)
    return HubModel(reference, folder, commit) if _is_complete(folder) else None


def list_downloaded(home: Path) -> tuple[HubModel, ...]:
    """Each by the name that finds it: by its commit where the branch has moved on."""
    found = []
    for manifest in sorted((home.absolute() / FOLDER).glob(f"*/*/{MANIFEST}")):
        content = _read(manifest)
        reference = HubReference(content["repository"], content["revision"], content["file"])
        if _newest_manifest(reference, home) != content:
            reference = replace(reference, revision=content["commit"])
        if _is_complete(manifest.parent):
            found.append(HubModel(reference, manifest.parent, content["commit"]))
    return tuple(found)


def _ask(
    python: Path, job: Mapping[str, Any], on_progress: OnProgress = lambda _done, _total: None
) -> dict[str, Any]:
    """What the worker returns. It has all of our variables: the token, proxies, HF_HOME, HF_ENDPOINT."""
    last: dict[str, Any] = {}
    try:
        for last in run_short_job(_WORKER, python, job, env=tool_child_variables(hub_token=True)):
            if last["event"] == "progress":
                on_progress(last["done"], last["total"])
    except WorkerFailed as failure:
        raise ModelError(failure.cause or str(failure)) from None
    return last


def _link(
    files: Sequence[Mapping[str, Any]], snapshot: Path, model: HubModel, home: Path, seconds: float
) -> None:
    """Make a folder of links into the cache. It gets its name once it is complete."""
    safe = SafeFolder(home)
    place = safe.make_folder(str(model.path.parent.relative_to(home.absolute())))
    with tempfile.TemporaryDirectory(prefix=".linking-", dir=place) as scratch:
        folder = SafeFolder(Path(scratch)).make_folder("model")
        for file in files:
            (folder / PurePosixPath(file["name"]).name).symlink_to(
                (snapshot / file["name"]).resolve()
            )
        content = {
            "name": model.reference.name,
            "repository": model.reference.repository,
            "revision": model.reference.revision,
            "file": model.reference.file,
            "commit": model.commit,
            "source": model.reference.url,
            "seconds": round(seconds, 1),
            "files": {PurePosixPath(file["name"]).name: dict(file) for file in files},
        }
        SafeFolder(folder).write(MANIFEST, json.dumps(content, indent=2) + "\n")
        safe.remove_folder(str(model.path.relative_to(home.absolute())))
        folder.rename(model.path)


def _is_complete(folder: Path) -> bool:
    """Whether each file is still in the cache that its link leads to."""
    manifest = folder / MANIFEST
    return manifest.exists() and all((folder / name).exists() for name in _read(manifest)["files"])


def _folder(reference: HubReference, commit: str, home: Path) -> Path:
    chosen = f"--{PurePosixPath(reference.file).name}" if reference.file else ""
    return _repository_folder(reference, home) / f"{commit}{chosen}"


def _repository_folder(reference: HubReference, home: Path) -> Path:
    return home.absolute() / FOLDER / reference.repository.replace("/", "--")


def _newest_manifest(reference: HubReference, home: Path) -> dict[str, Any] | None:
    """Return what was downloaded last under this name: a branch means the commit that it had then."""
    manifests = sorted(
        _repository_folder(reference, home).glob(f"*/{MANIFEST}"),
        key=lambda file: file.stat().st_mtime,
    )
    contents = map(_read, reversed(manifests))
    wanted = (reference.revision, reference.file)
    return next(
        (content for content in contents if (content["revision"], content["file"]) == wanted), None
    )


def _read(file: Path) -> dict[str, Any]:
    """Of our own folder; raises ModelError where it was changed to what is no JSON."""
    try:
        content: dict[str, Any] = json.loads(read_bytes(file))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{file} cannot be read ({error}); remove {file.parent} and download the model again."
        ) from error
    return content

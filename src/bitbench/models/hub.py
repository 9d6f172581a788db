"""Models of a hub: their names in a study, and their download.

A download is a folder `<home>/models/hub/ORG--NAME/COMMIT/` of links into the shared cache.
"""

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
from bitbench.util.child_processes import collect_tool_variables
from bitbench.util.errors import ModelError
from bitbench.util.files import SafeFolder, read_bytes
from bitbench.util.isolated.job_process import WorkerFailed, run_short_job

DEFAULT_REVISION = "main"
_DEFAULT_ENDPOINT = "https://huggingface.co"
_PART = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}"
# A relative path that cannot leave its folder.
_PATH = r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,95}(?:/[A-Za-z0-9_][A-Za-z0-9_.+-]{0,95}){0,4}"
_REFERENCE = re.compile(
    rf"(?P<repository>{_PART}/{_PART})(?:@(?P<revision>{_PATH}))?(?::(?P<file>{_PATH}))?"
)
_WHOLE_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubReference:
    repository: str  # "Qwen/Qwen3-4B"
    revision: str = DEFAULT_REVISION  # a branch, a tag or a commit
    file: str | None = None  # in a GGUF repository: a file's name, or its type, such as Q4_K_M

    @property
    def name(self) -> str:
        """The model's name without its organization: "Qwen3-4B"."""
        return self.repository.partition("/")[2]

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit. A branch or a tag may move."""
        return _WHOLE_COMMIT.fullmatch(self.revision) is not None

    @property
    def url(self) -> str:
        endpoint = os.environ.get("HF_ENDPOINT", _DEFAULT_ENDPOINT).rstrip("/")
        return f"{endpoint}/{self.repository}/tree/{self.revision}"

    def __str__(self) -> str:
        revision = "" if self.revision == DEFAULT_REVISION else f"@{self.revision}"
        file = f":{self.file}" if self.file else ""
        return f"{self.repository}{revision}{file}"


def parse_hub_reference(text: str) -> HubReference | None:
    """Return the parts of a model's name on a hub, or None if the text cannot be one."""
    match = _REFERENCE.fullmatch(text)
    if match is None:
        return None
    return HubReference(match["repository"], match["revision"] or DEFAULT_REVISION, match["file"])


FOLDER = "models/hub"
_WORKER = Path(__file__).parent / "workers" / "hub_worker.py"
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_FILE = re.compile(_PATH)

OnProgress = Callable[[int, int], None]  # bytes that have arrived, and all bytes


@dataclass(frozen=True)
class HubModel:
    """A downloaded model. `commit` is the commit that its revision means here."""

    reference: HubReference
    path: Path
    commit: str


@dataclass(frozen=True)
class Download:
    model: HubModel
    moved_from: str | None = None  # the commit that the same revision meant before
    from_cache: bool = False  # the hub was not asked, or could not be reached


def download(
    reference: HubReference,
    home: Path,
    *,
    python: Path,
    on_progress: OnProgress = lambda _done, _total: None,
) -> Download:
    """Return the model as the hub has it now. Files in the shared cache are not fetched again.

    `python` is an interpreter with huggingface_hub.
    """
    if reference.is_pinned and (model := find_hub_model(reference, home)) is not None:
        return Download(model)
    began = time.monotonic()
    answer = _ask_hub(python, {"task": "get", **asdict(reference)}, on_progress)
    commit = str(answer["commit"])
    files = answer["files"]
    if not _COMMIT.fullmatch(commit) or not all(_FILE.fullmatch(file["name"]) for file in files):
        raise ModelError(
            f"{reference.url} names a commit or a file that cannot be one; check HF_ENDPOINT."
        )
    before = _find_newest_manifest(reference, home)
    model = HubModel(reference, _get_model_folder(reference, commit, home), commit)
    _link_model_folder(files, Path(answer["folder"]), model, home, time.monotonic() - began)
    moved_from = before["commit"] if before is not None and before["commit"] != commit else None
    return Download(model, moved_from, bool(answer["from_cache"]))


def hub_download_bytes(reference: HubReference, *, python: Path) -> int:
    """Return the bytes that a download would fetch at most. Raise ModelError."""
    return int(_ask_hub(python, {"task": "size", **asdict(reference)})["size_bytes"])


def read_hub_file_hashes(folder: Path) -> dict[str, str]:
    """Return the hub's content hashes of a downloaded model's files, or {} for another folder."""
    manifest = folder / MANIFEST
    hashes = {}
    if manifest.exists():
        for name, file in _read_manifest(manifest).get("files", {}).items():
            if isinstance(file, dict) and file.get("hash"):
                hashes[name] = file["hash"]
    return hashes


def find_hub_model(reference: HubReference, home: Path) -> HubModel | None:
    """Return the model as it was downloaded, or None. Needs no network."""
    newest = None if reference.is_pinned else _find_newest_manifest(reference, home)
    commit = str(newest["commit"]) if newest else reference.revision
    if not _COMMIT.fullmatch(commit):
        return None
    folder = _get_model_folder(reference, commit, home)
    return HubModel(reference, folder, commit) if _is_complete(folder) else None


def list_downloaded(home: Path) -> tuple[HubModel, ...]:
    """Return the downloaded models by the names that find them.

    A model has its commit in the name if its branch has moved on.
    """
    models = []
    for manifest in sorted((home.absolute() / FOLDER).glob(f"*/*/{MANIFEST}")):
        content = _read_manifest(manifest)
        reference = HubReference(content["repository"], content["revision"], content["file"])
        if _find_newest_manifest(reference, home) != content:
            reference = replace(reference, revision=content["commit"])
        if _is_complete(manifest.parent):
            models.append(HubModel(reference, manifest.parent, content["commit"]))
    return tuple(models)


def _ask_hub(
    python: Path, job: Mapping[str, Any], on_progress: OnProgress = lambda _done, _total: None
) -> dict[str, Any]:
    """Return the worker's result. The worker has our token, proxies, HF_HOME and HF_ENDPOINT."""
    last: dict[str, Any] = {}
    try:
        for last in run_short_job(_WORKER, python, job, env=collect_tool_variables(hub_token=True)):
            if last["event"] == "progress":
                on_progress(last["done"], last["total"])
    except WorkerFailed as failure:
        raise ModelError(failure.cause or str(failure)) from None
    return last


def _link_model_folder(
    files: Sequence[Mapping[str, Any]], snapshot: Path, model: HubModel, home: Path, seconds: float
) -> None:
    """Make a folder of links into the cache. It gets its final name once it is complete."""
    safe = SafeFolder(home)
    parent = safe.make_folder(str(model.path.parent.relative_to(home.absolute())))
    with tempfile.TemporaryDirectory(prefix=".linking-", dir=parent) as scratch:
        folder = SafeFolder(Path(scratch)).make_folder("model")
        by_name = {}
        for file in files:
            link = folder / PurePosixPath(file["name"]).name
            link.symlink_to((snapshot / file["name"]).resolve())
            by_name[link.name] = dict(file)
        content = {
            "name": model.reference.name,
            "repository": model.reference.repository,
            "revision": model.reference.revision,
            "file": model.reference.file,
            "commit": model.commit,
            "source": model.reference.url,
            "seconds": round(seconds, 1),
            "files": by_name,
        }
        SafeFolder(folder).write(MANIFEST, json.dumps(content, indent=2) + "\n")
        safe.remove_folder(str(model.path.relative_to(home.absolute())))
        folder.rename(model.path)


def _is_complete(folder: Path) -> bool:
    """Return True if each file that the folder links to is still in the cache."""
    manifest = folder / MANIFEST
    return manifest.exists() and all(
        (folder / name).exists() for name in _read_manifest(manifest)["files"]
    )


def _get_model_folder(reference: HubReference, commit: str, home: Path) -> Path:
    suffix = f"--{PurePosixPath(reference.file).name}" if reference.file else ""
    return _get_repository_folder(reference, home) / f"{commit}{suffix}"


def _get_repository_folder(reference: HubReference, home: Path) -> Path:
    return home.absolute() / FOLDER / reference.repository.replace("/", "--")


def _find_newest_manifest(reference: HubReference, home: Path) -> dict[str, Any] | None:
    """Return the manifest of the last download under this name, or None.

    A branch stands for the commit that it had at that time.
    """
    manifests = sorted(
        _get_repository_folder(reference, home).glob(f"*/{MANIFEST}"),
        key=lambda file: file.stat().st_mtime,
    )
    for manifest in reversed(manifests):
        content = _read_manifest(manifest)
        if (content["revision"], content["file"]) == (reference.revision, reference.file):
            return content
    return None


def _read_manifest(file: Path) -> dict[str, Any]:
    """Return a manifest of our own, or raise ModelError if it is no longer readable."""
    try:
        content: dict[str, Any] = json.loads(read_bytes(file))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{file} cannot be read ({error}); remove {file.parent} and download the model again."
        ) from error
    return content

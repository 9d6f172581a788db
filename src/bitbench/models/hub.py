"""Models of a hub: how a study names one, which of its files are the model, and the download to
`<home>/models/hub/ORG--NAME/COMMIT/`, links into the shared cache."""

import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from bitbench.models.folder import MANIFEST, remembered_hashes
from bitbench.util.child_processes import tool_child_variables
from bitbench.util.errors import ModelError
from bitbench.util.files import SafeFolder, read_bytes
from bitbench.util.isolated.job_process import WorkerFailed, run_short_job
from bitbench.util.model_files import read_model_json

DEFAULT_REVISION = "main"
_DEFAULT_ENDPOINT = "https://huggingface.co"
_PART = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}"
_PATH = r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,95}(?:/[A-Za-z0-9_][A-Za-z0-9_.+-]{0,95}){0,4}"  # leads to no folder above
_REFERENCE = re.compile(rf"(?P<repository>{_PART}/{_PART})(?:@(?P<revision>{_PATH}))?(?::(?P<file>{_PATH}))?")
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


# Of the repository's own folder; what lies below it are other forms of the same model. No pickles, and no code.
_BESIDE_WEIGHTS = ("*.json", "*.jinja", "*.tiktoken", "tokenizer.model", "*.model.v3", "merges.txt", "vocab.txt")
_WEIGHTS = ("model*.safetensors", "*.safetensors")  # the first that fits: others beside it are copies or adapters
_SAFE_NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.+-]*/)*[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})$")
_MOST_NAMED = 12  # GGUF files in a sentence


@dataclass(frozen=True)
class HubFile:
    name: str  # its path in the repository
    size_bytes: int
    sha256: str | None = None  # of a large file
    git_hash: str | None = None  # of a small one


def _listed_files(listed: Sequence[Mapping[str, object]]) -> list[HubFile]:
    """As a hub lists them. Raises ValueError, without the hub's words: they may repeat what it was sent."""
    files = []
    for entry in listed:
        name, size = entry["name"], entry["size_bytes"]
        sha256, git_hash = _hash(entry["sha256"], 64), _hash(entry["git_hash"], 40)
        if not isinstance(name, str) or not isinstance(size, int) or size < 0:
            raise ValueError("a name or a size is none")
        files.append(HubFile(name, size, sha256, git_hash))
    if len({file.name for file in files}) != len(files):
        raise ValueError("a file is in it twice")
    return files


def _hash(said: object, digits: int) -> str | None:
    if said is None or (isinstance(said, str) and re.fullmatch(rf"[0-9a-f]{{{digits}}}", said)):
        return said
    raise ValueError("a hash is none")


def _choose_files(files: Sequence[HubFile], reference: HubReference) -> tuple[HubFile, ...]:
    """The weights with what is needed to load them, or the GGUF file that the reference names; raises ModelError."""
    usual = [file for file in files if _SAFE_NAME.fullmatch(file.name) and file.name != MANIFEST]  # ours, not theirs
    if reference.file is not None:
        return _chosen_gguf(usual, reference)
    top = [file for file in usual if "/" not in file.name]
    for pattern in _WEIGHTS:
        if weights := [file for file in top if fnmatch(file.name, pattern)]:
            return (*weights, *(file for file in top if any(fnmatch(file.name, like) for like in _BESIDE_WEIGHTS)))
    if any(file.name.endswith(".gguf") for file in usual):
        raise ModelError(f"{reference} is a GGUF repository; {_advice(usual, reference)}")
    raise ModelError(
        f"{reference} has no .safetensors file; bitbench downloads no pickled weights, which can run code. "
        "Look for a repository with safetensors."
    )


def _find_damage(file: HubFile, path: Path, sha256: str) -> str | None:
    """What tells this file from the hub's, or None. `sha256` is that of its content."""
    if file.sha256 is not None:
        return None if sha256 == file.sha256 else f"its sha256 is {sha256}, the hub's is {file.sha256}"
    if file.git_hash is None:
        return None
    found = _git_hash(path)
    return None if found == file.git_hash else f"its git hash is {found}, the hub's is {file.git_hash}"


def _chosen_gguf(files: Sequence[HubFile], reference: HubReference) -> tuple[HubFile, ...]:
    ggufs = [file for file in files if file.name.endswith(".gguf")]
    matching = [file for file in ggufs if _is_meant(file.name, reference.file or "")]
    whole = {file.name.removesuffix(PurePosixPath(file.name).name) + _without_part(file.name) for file in matching}
    if len(whole) != 1:
        problem = "several GGUF files match" if matching else "no GGUF file matches"
        raise ModelError(f"{problem} {reference}; {_advice(matching or ggufs, reference)}")
    return tuple(sorted(matching, key=lambda file: file.name))


def _is_meant(name: str, wanted: str) -> bool:
    whole = _without_part(name)
    is_type = re.search(rf"(?:^|[-_.]){re.escape(wanted)}$", whole, re.IGNORECASE) is not None
    return is_type or wanted in (name, PurePosixPath(name).name)


def _without_part(name: str) -> str:
    """One name for all files that a large model is split into."""
    return _SPLIT.sub("", PurePosixPath(name).stem)


def _advice(files: Sequence[HubFile], reference: HubReference) -> str:
    names = sorted({_without_part(file.name) for file in files if file.name.endswith(".gguf")})
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    listed = ", ".join(names[:_MOST_NAMED]) or "none"
    return f"name one of its files as {reference.repository}:TYPE (it has {listed}{more})."


def _git_hash(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


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
    if reference.is_pinned and (there := find_hub_model(reference, home)) is not None:
        return Download(there)
    began = time.monotonic()
    listed = _ask(python, {"task": "list", **_named(reference)})
    commit = str(listed["commit"])
    if not _COMMIT.fullmatch(commit):
        raise ModelError(f"{reference.url} names a commit that cannot be one; check HF_ENDPOINT.")
    before = _known_commit(reference, home)
    model = HubModel(reference, _folder(reference, commit, home), commit)
    if not _is_complete(model.path):
        files = _chosen(listed, reference)
        job = {"task": "download", **_named(reference), "commit": commit, "files": [asdict(file) for file in files]}
        fetched = _ask(python, job, on_progress)["paths"]
        paths = {file: Path(fetched[file.name]) for file in files}
        _check(paths, reference, home)
        _link(paths, model, home, time.monotonic() - began)
    _remember_revision(reference, commit, home)
    return Download(model, before if before not in (None, commit) else None, bool(listed["from_cache"]))


def hub_download_bytes(reference: HubReference, *, python: Path) -> int:
    """What a download would bring at most, as the hub lists it now. Raises ModelError."""
    listed = _ask(python, {"task": "list", **_named(reference)})
    return sum(file.size_bytes for file in _chosen(listed, reference))


def find_hub_model(reference: HubReference, home: Path) -> HubModel | None:
    """As it was downloaded; needs no network."""
    commit = reference.revision if reference.is_pinned else _known_commit(reference, home)
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
        if _known_commit(reference, home) != content["commit"]:
            reference = replace(reference, revision=content["commit"])
        if _is_complete(manifest.parent):
            found.append(HubModel(reference, manifest.parent, content["commit"]))
    return tuple(found)


def _named(reference: HubReference) -> dict[str, str]:
    return {"repository": reference.repository, "revision": reference.revision}


def _ask(python: Path, job: Mapping[str, Any], on_progress: OnProgress = lambda _done, _total: None) -> dict[str, Any]:
    """What the worker returns. It has all of our variables: the token, proxies, HF_HOME, HF_ENDPOINT."""
    last: dict[str, Any] = {}
    try:
        for last in run_short_job(_WORKER, python, job, env=tool_child_variables(hub_token=True)):
            if last["event"] == "progress":
                on_progress(last["done"], last["total"])
    except WorkerFailed as failure:
        raise ModelError(failure.cause or str(failure)) from None
    return last


def _chosen(listed: Mapping[str, Any], reference: HubReference) -> tuple[HubFile, ...]:
    try:
        files = _listed_files(listed["files"])
    except ValueError as error:
        raise ModelError(f"What {reference.url} lists is not a list of files: {error}; check HF_ENDPOINT.") from None
    try:
        return _choose_files(files, reference)
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
        if damage := _find_damage(file, path, hashes[path]):
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
    named = read_model_json(index).get("weight_map")
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


def _known_commit(reference: HubReference, home: Path) -> str | None:
    """What its revision meant when this model was downloaded."""
    return _revisions(reference, home).get(_revision_key(reference))


def _revision_key(reference: HubReference) -> str:
    """Files of one repository are downloaded at different times, and the branch may move in between."""
    return f"{reference.revision}:{reference.file}" if reference.file else reference.revision


def _remember_revision(reference: HubReference, commit: str, home: Path) -> None:
    known, key = _revisions(reference, home), _revision_key(reference)
    if known.get(key) != commit:
        content = json.dumps({**known, key: commit}, indent=1) + "\n"
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

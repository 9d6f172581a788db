"""Ask a model hub: `python -I hub_worker.py JOB.json`.

It runs in an environment with huggingface_hub and imports nothing of bitbench. huggingface_hub
handles tokens, proxies, HF_ENDPOINT, HF_HUB_OFFLINE, the shared cache and interrupted downloads.
The job has `repository`, `revision`, `file` (a name or a type in a GGUF repository) and a `task`:
`size` or `get`.
"""

import errno
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

# In isolated mode, Python searches no folder of ours.
sys.path.append(str(Path(__file__).parents[2] / "util" / "isolated"))
from job_worker import (  # type: ignore[import-not-found]
    JobError,
    Json,
    Reports,
    run_as_job_worker,
)

AT_ONCE = 4  # files that are downloaded at the same time
TOLD_EVERY_S = 0.5
FULL = (errno.ENOSPC, errno.EDQUOT)
# In the repository's top folder: folders below it hold other forms of the same model. Pickles and
# code are excluded.
BESIDE_WEIGHTS = (
    "*.json",
    "*.jinja",
    "*.tiktoken",
    "tokenizer.model",
    "*.model.v3",
    "merges.txt",
    "vocab.txt",
)
# The first pattern that matches counts: files that match only the second are copies or adapters.
WEIGHTS = ("model*.safetensors", "*.safetensors")
SAFE_NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.+-]*/)*[A-Za-z0-9_][A-Za-z0-9_.+-]*")
OWN_MANIFEST = "bitbench-model.json"  # bitbench writes it, so a repository must not contain one
SPLIT = re.compile(r"-(\d{5})-of-(\d{5})$")
MOST_NAMED = 12  # GGUF files in an error message
SENTENCES = {
    "gated": "{repository} is gated: accept its conditions on {endpoint}/{repository}, then set "
    "HF_TOKEN to a token that may read it, or log in with `hf auth login`.",
    "no access": "{repository} is gated, and your token has no access; "
    "request it on {endpoint}/{repository}.",
    "no repository": "{endpoint} has no model {repository}, or it is private; "
    "check the spelling, or set HF_TOKEN to a token that may read it.",
    "no revision": "{repository} has no revision {revision}; "
    "{endpoint}/{repository}/commits/main lists them.",
    "offline": "{repository} at {revision} is not in {cache}, and HF_HUB_OFFLINE forbids asking "
    "the hub; unset it to download the model.",
    "token refused": "{endpoint} refuses your token; "
    "check HF_TOKEN, or log in with `hf auth login`.",
    "answered": "{endpoint} answered with the status {status} when asked for {repository}; "
    "repeat the command later.",
    "disk full": "The disk of {cache} is full; free some space, or set HF_HOME to a larger disk, "
    "and repeat the command.",
    "unreachable": "{endpoint} cannot be reached, or the connection broke off; "
    "check the network (HTTPS_PROXY, HF_ENDPOINT) and repeat the command: complete files are kept.",
    "no weights": "{repository} has no .safetensors file; bitbench downloads no pickled weights, "
    "which can run code. Look for a repository with safetensors.",
    "part": "The shared cache has only a part of {repository}, and the hub was not asked; "
    "repeat the command with a network.",
    "incomplete": "{repository} has not all of the files that it lists; repeat the command later.",
    "other": "{repository} could not be downloaded: {said}",
}


def _work(job: Json, reports: Reports) -> Json:
    """Return the size of a model, or download it and return its files. Raise JobError."""
    try:
        listed = _list_files(job)
        files = _choose_files(listed, job)
        total = sum(file["size_bytes"] for file in files)
        if job["task"] == "size":
            return {"size_bytes": total}
        folder = listed["cached"] or _download_snapshot(
            job, files, DownloadProgress(reports, total)
        )
        for file in files:
            path = folder / file["name"]
            if not path.exists():
                raise JobError(SENTENCES["incomplete"].format(**job))
            file["hash"] = path.resolve().name  # the cache names a file by the hub's hash of it
        return {
            "commit": folder.name,
            "folder": str(folder),
            "files": files,
            "from_cache": bool(listed["cached"]),
        }
    except JobError:
        raise
    except Exception as error:
        raise JobError(_describe_error(error, job)) from error


def _list_files(job: Json) -> Json:
    """List the files from the hub, or from the shared cache if the hub cannot be reached.

    HF_HUB_OFFLINE counts as unreachable.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        model = HfApi().model_info(job["repository"], revision=job["revision"], files_metadata=True)
        sizes = {sibling.rfilename: sibling.size or 0 for sibling in model.siblings or ()}
        return {"sizes": sizes, "cached": None}
    except HfHubHTTPError:  # it did answer
        raise
    except Exception as error:
        if not _is_unreachable(error) or (folder := _find_cached_snapshot(job)) is None:
            raise
        sizes = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                sizes[path.relative_to(folder).as_posix()] = path.stat().st_size
        return {"sizes": sizes, "cached": folder}


def _find_cached_snapshot(job: Json) -> Path | None:
    """Return a revision's folder in the shared cache, whose layout is documented, or None."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE, f"models--{job['repository'].replace('/', '--')}")
    commit = job["revision"]
    reference = cache / "refs" / commit
    if reference.is_file():
        commit = reference.read_text(encoding="utf-8").strip()
    folder = cache / "snapshots" / commit
    return folder if folder.is_dir() else None


def _choose_files(listed: Json, job: Json) -> list[Json]:
    """Return the weights and the files needed to load them, or the GGUF file in the job."""
    safe = {}
    for name, size in listed["sizes"].items():
        if SAFE_NAME.fullmatch(name) and name != OWN_MANIFEST:
            safe[name] = size
    names = _choose_gguf(list(safe), job) if job["file"] else _choose_weights(safe)
    if names:
        return [{"name": name, "size_bytes": safe[name]} for name in names]
    if listed["cached"]:
        raise JobError(SENTENCES["part"].format(**job))
    if any(name.endswith(".gguf") for name in safe):
        raise JobError(
            f"{job['repository']} is a GGUF repository; {_suggest_file_names(safe, job)}"
        )
    raise JobError(SENTENCES["no weights"].format(**job))


def _choose_weights(names: Iterable[str]) -> list[str]:
    """Return the weights in the top folder and the files that loading them needs."""
    top = [name for name in names if "/" not in name]
    for pattern in WEIGHTS:
        if weights := [name for name in top if fnmatch(name, pattern)]:
            return weights + list(filter(_is_beside_weights, top))
    return []


def _is_beside_weights(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in BESIDE_WEIGHTS)


def _choose_gguf(names: list[str], job: Json) -> list[str]:
    """Return the job's GGUF file with all its parts, or raise JobError if it is ambiguous."""
    ggufs = [name for name in names if name.endswith(".gguf")]
    matching = [name for name in ggufs if _is_meant(name, job["file"])]
    models = {(PurePosixPath(name).parent, _strip_part_number(name)) for name in matching}
    if len(models) != 1:
        problem = "several GGUF files match" if matching else "no GGUF file matches"
        requested = f"{job['repository']}:{job['file']}"
        raise JobError(f"{problem} {requested}; {_suggest_file_names(matching or ggufs, job)}")
    return sorted(matching)


def _is_meant(name: str, requested: str) -> bool:
    """Return True if the request is the file's name, its path or its type, such as Q4_K_M."""
    if requested in (name, PurePosixPath(name).name):
        return True
    pattern = rf"(?:^|[-_.]){re.escape(requested)}$"
    return re.search(pattern, _strip_part_number(name), re.IGNORECASE) is not None


def _strip_part_number(name: str) -> str:
    """Return the file's name without its part number, which all parts of a large model share."""
    return SPLIT.sub("", PurePosixPath(name).stem)


def _suggest_file_names(names: Iterable[str], job: Json) -> str:
    types = sorted({_strip_part_number(name) for name in names if name.endswith(".gguf")})
    shown = ", ".join(types[:MOST_NAMED]) or "none"
    if len(types) > MOST_NAMED:
        shown += f" and {len(types) - MOST_NAMED} more"
    return f"name one of its files as {job['repository']}:TYPE (it has {shown})."


def _download_snapshot(job: Json, files: list[Json], progress: "DownloadProgress") -> Path:
    """Download the files and return their folder in the shared cache."""
    from huggingface_hub import snapshot_download, try_to_load_from_cache
    from huggingface_hub.utils import tqdm

    class Counted(tqdm):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            # A bar that is not displayed counts nothing, so this class counts by itself.
            self.is_bytes = options.get("unit") == "B"
            self.done = 0

        def update(self, n: float | None = 1) -> bool | None:
            self.done += int(n or 0)
            if self.is_bytes:
                progress.tell(self.done)
            return super().update(n)  # type: ignore[no-any-return]

    needed = 0
    for file in files:
        cached = try_to_load_from_cache(job["repository"], file["name"], revision=job["revision"])
        if not isinstance(cached, str):
            needed += file["size_bytes"]
    _refuse_without_room(needed)
    names = [file["name"] for file in files]
    folder = snapshot_download(
        job["repository"],
        revision=job["revision"],
        allow_patterns=names,
        max_workers=AT_ONCE,
        tqdm_class=Counted,
    )
    return Path(folder)


class DownloadProgress:
    """The bytes of all files together, reported a few times a second."""

    def __init__(self, reports: Reports, total: int) -> None:
        self._reports = reports
        self._total = total
        self._done = 0
        self._told_at = 0.0
        self._lock = threading.Lock()

    def tell(self, done: int) -> None:
        """Report the downloaded bytes, at most once in `TOLD_EVERY_S`."""
        with self._lock:
            # One bar counts what arrives, another what is written.
            self._done = max(self._done, done)
            if time.monotonic() - self._told_at >= TOLD_EVERY_S:
                self._told_at = time.monotonic()
                self._reports.send("progress", done=self._done, total=self._total)


def _refuse_without_room(needed: int) -> None:
    """Raise JobError if the disk of the shared cache lacks the needed bytes."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE)
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise JobError(
            f"The download needs {needed / 1e9:,.1f} GB and {constants.HF_HUB_CACHE} has "
            f"{free / 1e9:,.1f} GB free; free some space, or set HF_HOME to a larger disk."
        )


def _describe_error(error: Exception, job: Json) -> str:
    """Return a sentence for the user. It is made from `SENTENCES`, because a server's message may
    contain secrets."""
    from huggingface_hub import constants, get_token

    causes = _list_error_causes(error)
    lines = str(error).strip().splitlines() or ["no message"]
    first_line = lines[0].replace(get_token() or "\n", "***")
    return SENTENCES[_classify_error(causes)].format(
        repository=job["repository"],
        revision=job["revision"],
        endpoint=constants.ENDPOINT,
        cache=constants.HF_HUB_CACHE,
        status=next(iter(_list_statuses(causes)), None),
        said=f"{type(error).__name__}: {first_line}",
    )


def _classify_error(causes: list[BaseException]) -> str:
    """Return the key of the entry in `SENTENCES` that fits. The most specific comes first."""
    from huggingface_hub import errors, get_token

    def is_among(kind: type[BaseException]) -> bool:
        return any(isinstance(cause, kind) for cause in causes)

    statuses = _list_statuses(causes)
    tests = {
        "gated": is_among(errors.GatedRepoError) and get_token() is None,
        "no access": is_among(errors.GatedRepoError),
        "no repository": is_among(errors.RepositoryNotFoundError),
        "no revision": is_among(errors.RevisionNotFoundError),
        "offline": is_among(errors.OfflineModeIsEnabled),
        "token refused": 401 in statuses,
        "answered": bool(statuses),
        "disk full": any(isinstance(cause, OSError) and cause.errno in FULL for cause in causes),
        "unreachable": any(map(_is_unreachable, causes)),
    }
    return next((kind for kind, fits in tests.items() if fits), "other")


def _list_statuses(causes: list[BaseException]) -> list[int]:
    from huggingface_hub.errors import HfHubHTTPError

    return [cause.response.status_code for cause in causes if isinstance(cause, HfHubHTTPError)]


def _list_error_causes(error: BaseException) -> list[BaseException]:
    """Return the error and its causes, the error first."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    return causes


def _is_unreachable(error: BaseException) -> bool:
    """Return True for errors of the connection.

    They include errors of the HTTP client, which differs between versions of huggingface_hub.
    """
    if isinstance(error, (ConnectionError, TimeoutError)):
        return True
    module = type(error).__module__.partition(".")[0]
    return module.startswith("httpx") or "Consistency check failed" in str(error)


if __name__ == "__main__":
    sys.exit(run_as_job_worker(sys.argv[1], _work))

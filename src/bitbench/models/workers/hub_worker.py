"""Asks a model hub: `python -I hub_worker.py JOB.json`, run where huggingface_hub is installed.

Imports nothing of bitbench. What huggingface_hub does by itself is left to it: tokens, proxies, HF_ENDPOINT,
HF_HUB_OFFLINE, the shared cache and continuing a broken connection. But it makes paths of what a hub answers, and takes
a token where a hub sends it: `guard` looks at each answer and each request first. A job is one of

    {"task": "list", "repository": …, "revision": …}                 what a revision is and holds
    {"task": "download", …, "commit": …, "files": […]}               these files of it, into the shared cache
"""

import errno
import re
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.append(str(Path(__file__).parents[2] / "util" / "isolated"))  # run in isolated mode, python looks nowhere else
from job_worker import JobError, Json, Reports, run_as_job_worker  # type: ignore[import-not-found]

AT_ONCE = 4  # files
TOLD_EVERY_S = 0.5
FULL = (errno.ENOSPC, errno.EDQUOT)
# What becomes the name of a file or folder in the cache.
HASH = re.compile(r'(?:W/)?("?)[A-Za-z0-9_][A-Za-z0-9_.+=-]{0,127}\1')
COMMIT = re.compile(r"[0-9a-f]{7,64}")
SENTENCES = {
    "gated": "{repository} is gated: accept its conditions on {endpoint}/{repository}, then set HF_TOKEN to a token "
    "that may read it, or log in with `hf auth login`.",
    "no access": "{repository} is gated, and your token has no access; request it on {endpoint}/{repository}.",
    "no repository": "{endpoint} has no model {repository}, or it is private; check the spelling, or set HF_TOKEN to a "
    "token that may read it.",
    "no revision": "{repository} has no revision {revision}; {endpoint}/{repository}/commits/main lists them.",
    "offline": "{repository} at {revision} is not in {cache}, and HF_HUB_OFFLINE forbids asking the hub; unset it to "
    "download the model.",
    "token refused": "{endpoint} refuses your token; check HF_TOKEN, or log in with `hf auth login`.",
    "answered": "{endpoint} answered with the status {status} when asked for {repository}; repeat the command later.",
    "disk full": "The disk of {cache} is full; free some space, or set HF_HOME to a larger disk, and repeat the "
    "command.",
    "unreachable": "{endpoint} cannot be reached, or the connection broke off; check the network (HTTPS_PROXY, "
    "HF_ENDPOINT) and repeat the command: complete files are kept.",
    "no name": "{endpoint} says something as the {header} of a file of {repository} that cannot be one; nothing was "
    "written. Check HF_ENDPOINT.",
    "another host": "{endpoint} wants your token for {repository} to be sent to another host; it was not. Check "
    "HF_ENDPOINT.",
    "other": "{repository} could not be downloaded: {said}",
}


def _work(job: Json, reports: Reports) -> Json:
    guard(job)
    try:
        return _list_files(job) if job["task"] == "list" else download(job, reports)
    except JobError:
        raise
    except Exception as error:
        raise JobError(_error_sentence(error, job)) from error


def guard(job: Json) -> None:
    """Look at whatever huggingface_hub sends and receives; what its store of large files does is native code."""
    from huggingface_hub import constants, set_client_factory
    from huggingface_hub.utils import _http

    hub = _origin(constants.ENDPOINT)
    told = {"endpoint": constants.ENDPOINT, "repository": job["repository"]}

    def keep_token(request: Any) -> None:
        if _origin(str(request.url)) != hub:
            request.headers.pop("Authorization", None)

    def check(response: Any) -> None:
        names = {"X-Repo-Commit": COMMIT}
        if response.request.method == "HEAD":  # of no other answer is the hash a name
            names |= {"ETag": HASH, "X-Linked-Etag": HASH}
        for header, name in names.items():
            said = response.headers.get(header)
            if said is not None and not name.fullmatch(said):
                raise JobError(SENTENCES["no name"].format(header=header, **told))
        # Where native code asks for access with the token; huggingface_hub puts HF_ENDPOINT for the usual address.
        for route in (response.headers.get("X-Xet-Refresh-Route"), response.links.get("xet-auth", {}).get("url")):
            if route and _origin(route) != hub and not route.startswith(constants.HUGGINGFACE_CO_URL_HOME):
                raise JobError(SENTENCES["another host"].format(**told))

    def client() -> Any:
        made = _http.default_client_factory()
        hooks = made.event_hooks
        made.event_hooks = {"request": [keep_token, *hooks["request"]], "response": [check, *hooks["response"]]}
        return made

    set_client_factory(client)


def _origin(url: str) -> tuple[str, str | None, int | None] | None:
    """Scheme, host and port; None of what is no URL."""
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None


def _list_files(job: Json) -> Json:
    """From the hub; from the shared cache where the hub is not to be asked, or cannot be."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        found = HfApi().model_info(job["repository"], revision=job["revision"], files_metadata=True)
    except HfHubHTTPError:  # it did answer
        raise
    except Exception as error:
        if _is_unreachable(error) and (cached := _cached_files(job)) is not None:
            return cached
        raise
    files = [
        {
            "name": sibling.rfilename,
            "size_bytes": sibling.lfs.size if sibling.lfs else sibling.size or 0,
            "sha256": sibling.lfs.sha256 if sibling.lfs else None,
            "git_hash": None if sibling.lfs else sibling.blob_id,
        }
        for sibling in found.siblings or ()
    ]
    return {"commit": found.sha, "files": files, "from_cache": False}


def _cached_files(job: Json) -> Json | None:
    """The cache names a file by the hub's hash of it: sha256 of a large one, git's of a small one."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(job["repository"], revision=job["revision"], local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    files = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        stored = path.resolve().name
        files.append(
            {
                "name": path.relative_to(folder).as_posix(),
                "size_bytes": path.stat().st_size,
                "sha256": stored if len(stored) == 64 else None,
                "git_hash": stored if len(stored) == 40 else None,
            }
        )
    return {"commit": folder.name, "files": files, "from_cache": True}


def download(job: Json, reports: Reports) -> Json:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import tqdm

    missing = [file for file in job["files"] if not _is_cached(job["repository"], job["commit"], file)]
    progress = DownloadProgress(reports, total=sum(file["size_bytes"] for file in missing))
    _refuse_without_room(progress.total)

    class Counted(tqdm):  # type: ignore[misc]
        def update(self, n: float | None = 1) -> bool | None:
            progress.add(int(n or 0))
            return super().update(n)  # type: ignore[no-any-return]

    def bring(file: Json) -> tuple[str, str]:
        return file["name"], hf_hub_download(
            job["repository"], file["name"], revision=job["commit"], tqdm_class=Counted
        )

    with ThreadPoolExecutor(AT_ONCE) as pool:
        paths = dict(pool.map(bring, job["files"]))
    _remember_revision(job)
    return {"paths": paths}


def _remember_revision(job: Json) -> None:
    """As huggingface_hub does when it is asked for a branch: offline, the cache answers for it."""
    if job["revision"] != job["commit"]:
        reference = _repository_folder(job["repository"]) / "refs" / job["revision"]
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(job["commit"], encoding="utf-8")


def _repository_folder(repository: str) -> Path:
    """In the shared cache, whose layout is documented."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}")


class DownloadProgress:
    """Of all files together; told a few times a second."""

    def __init__(self, reports: Reports, total: int) -> None:
        self.total = total
        self._reports, self._done, self._told_at = reports, 0, 0.0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            if time.monotonic() - self._told_at >= TOLD_EVERY_S:
                self._told_at = time.monotonic()
                self._reports.send("progress", done=self._done, total=self.total)


def _is_cached(repository: str, commit: str, file: Json) -> bool:
    """In this commit, or as the same content in another one."""
    from huggingface_hub import try_to_load_from_cache

    if isinstance(try_to_load_from_cache(repository, file["name"], revision=commit), str):
        return True
    stored = file["sha256"] or file["git_hash"]
    return stored is not None and (_repository_folder(repository) / "blobs" / stored).exists()


def _refuse_without_room(needed: int) -> None:
    from huggingface_hub import constants

    place = Path(constants.HF_HUB_CACHE)
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed > free:
        raise JobError(
            f"The download needs {needed / 1e9:,.1f} GB and {constants.HF_HUB_CACHE} has {free / 1e9:,.1f} GB free; "
            "free some space, or set HF_HOME to a larger disk."
        )


def _error_sentence(error: Exception, job: Json) -> str:
    """In a sentence of ours: what a server says may repeat what it was sent."""
    from huggingface_hub import constants, get_token

    causes = _error_causes(error)
    first_line = (str(error).strip().splitlines() or ["no message"])[0].replace(get_token() or "\n", "***")
    return SENTENCES[_kind_of(causes)].format(
        repository=job["repository"],
        revision=job["revision"],
        endpoint=constants.ENDPOINT,
        cache=constants.HF_HUB_CACHE,
        status=next(iter(_statuses(causes)), None),
        said=f"{type(error).__name__}: {first_line}",
    )


def _kind_of(causes: list[BaseException]) -> str:
    """Which of `SENTENCES` fits; the most special first."""
    from huggingface_hub import errors, get_token

    def is_among(kind: type[BaseException]) -> bool:
        return any(isinstance(cause, kind) for cause in causes)

    answered = _statuses(causes)
    tests = {
        "gated": is_among(errors.GatedRepoError) and get_token() is None,
        "no access": is_among(errors.GatedRepoError),
        "no repository": is_among(errors.RepositoryNotFoundError),
        "no revision": is_among(errors.RevisionNotFoundError),
        "offline": is_among(errors.OfflineModeIsEnabled),
        "token refused": 401 in answered,
        "answered": bool(answered),
        "disk full": any(isinstance(cause, OSError) and cause.errno in FULL for cause in causes),
        "unreachable": any(_is_unreachable(cause) for cause in causes),
    }
    return next((kind for kind, fits in tests.items() if fits), "other")


def _statuses(causes: list[BaseException]) -> list[int]:
    from huggingface_hub.errors import HfHubHTTPError

    return [cause.response.status_code for cause in causes if isinstance(cause, HfHubHTTPError)]


def _error_causes(error: BaseException) -> list[BaseException]:
    """The error and what caused it."""
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in found:
        found.append(cause)
        cause = cause.__cause__ or cause.__context__
    return found


def _is_unreachable(error: BaseException) -> bool:
    """Also of the HTTP client, which changes its name between versions of huggingface_hub."""
    if isinstance(error, (ConnectionError, TimeoutError)):
        return True
    is_clients = type(error).__module__.partition(".")[0].startswith("httpx")
    return is_clients or "Consistency check failed" in str(error)


if __name__ == "__main__":
    sys.exit(run_as_job_worker(sys.argv[1], _work))

"""Asks a model hub: `python -I hub_worker.py JOB.json`, run where huggingface_hub is installed.

Imports nothing of bitbench. What huggingface_hub does by itself is left to it: tokens, proxies, HF_ENDPOINT,
HF_HUB_OFFLINE, the shared cache and continuing a broken connection. The job has `repository`, `revision`, `file` (of a
GGUF repository: a name or a type) and a `task`: `size` or `get`.
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

sys.path.append(
    str(Path(__file__).parents[2] / "util" / "isolated")
)  # run in isolated mode, python looks nowhere else
from job_worker import JobError, Json, Reports, run_as_job_worker  # type: ignore[import-not-found]

AT_ONCE = 4  # files
TOLD_EVERY_S = 0.5
FULL = (errno.ENOSPC, errno.EDQUOT)
# Of the repository's own folder; what lies below it are other forms of the same model. No pickles, and no code.
BESIDE_WEIGHTS = (
    "*.json",
    "*.jinja",
    "*.tiktoken",
    "tokenizer.model",
    "*.model.v3",
    "merges.txt",
    "vocab.txt",
)
WEIGHTS = (
    "model*.safetensors",
    "*.safetensors",
)  # the first that fits: others beside it are copies or adapters
SAFE_NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.+-]*/)*[A-Za-z0-9_][A-Za-z0-9_.+-]*")
OWN_MANIFEST = "bitbench-model.json"  # ours, not theirs
SPLIT = re.compile(r"-(\d{5})-of-(\d{5})$")
MOST_NAMED = 12  # GGUF files in a sentence
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
    "no weights": "{repository} has no .safetensors file; bitbench downloads no pickled weights, which can run code. "
    "Look for a repository with safetensors.",
    "part": "The shared cache has only a part of {repository}, and the hub was not asked; repeat the command with a "
    "network.",
    "incomplete": "{repository} has not all of the files that it lists; repeat the command later.",
    "other": "{repository} could not be downloaded: {said}",
}


def _work(job: Json, reports: Reports) -> Json:
    try:
        listed = _list_files(job)
        files = _choose_files(listed, job)
        total = sum(file["size_bytes"] for file in files)
        if job["task"] == "size":
            return {"size_bytes": total}
        folder = listed["cached"] or _download(job, files, DownloadProgress(reports, total))
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
        raise JobError(_error_sentence(error, job)) from error


def _list_files(job: Json) -> Json:
    """From the hub; from the shared cache where the hub is not to be asked, or cannot be."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        found = HfApi().model_info(job["repository"], revision=job["revision"], files_metadata=True)
        sizes = {sibling.rfilename: sibling.size or 0 for sibling in found.siblings or ()}
        return {"sizes": sizes, "cached": None}
    except HfHubHTTPError:  # it did answer
        raise
    except Exception as error:
        if not _is_unreachable(error) or (folder := _cached_snapshot(job)) is None:
            raise
        names = [
            path.relative_to(folder).as_posix()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        ]
        sizes = {name: (folder / name).stat().st_size for name in names}
        return {"sizes": sizes, "cached": folder}


def _cached_snapshot(job: Json) -> Path | None:
    """The folder of a revision in the shared cache, whose layout is documented."""
    from huggingface_hub import constants

    place = Path(constants.HF_HUB_CACHE, f"models--{job['repository'].replace('/', '--')}")
    reference = place / "refs" / job["revision"]
    commit = (
        reference.read_text(encoding="utf-8").strip() if reference.is_file() else job["revision"]
    )
    folder = place / "snapshots" / commit
    return folder if folder.is_dir() else None


def _choose_files(listed: Json, job: Json) -> list[Json]:
    """The weights with what is needed to load them, or the GGUF file that the job names."""
    usual = {
        name: size
        for name, size in listed["sizes"].items()
        if SAFE_NAME.fullmatch(name) and name != OWN_MANIFEST
    }
    names = (
        _chosen_gguf(list(usual), job)
        if job["file"]
        else _weights([name for name in usual if "/" not in name])
    )
    if names:
        return [{"name": name, "size_bytes": usual[name]} for name in names]
    if listed["cached"]:
        raise JobError(SENTENCES["part"].format(**job))
    if any(name.endswith(".gguf") for name in usual):
        raise JobError(f"{job['repository']} is a GGUF repository; {_advice(usual, job)}")
    raise JobError(SENTENCES["no weights"].format(**job))


def _weights(top: list[str]) -> list[str]:
    for pattern in WEIGHTS:
        if weights := [name for name in top if fnmatch(name, pattern)]:
            return weights + [
                name for name in top if any(fnmatch(name, like) for like in BESIDE_WEIGHTS)
            ]
    return []


def _chosen_gguf(names: list[str], job: Json) -> list[str]:
    ggufs = [name for name in names if name.endswith(".gguf")]
    matching = [name for name in ggufs if _is_meant(name, job["file"])]
    if len({(PurePosixPath(name).parent, _without_part(name)) for name in matching}) != 1:
        problem = "several GGUF files match" if matching else "no GGUF file matches"
        raise JobError(
            f"{problem} {job['repository']}:{job['file']}; {_advice(matching or ggufs, job)}"
        )
    return sorted(matching)


def _is_meant(name: str, wanted: str) -> bool:
    is_type = (
        re.search(rf"(?:^|[-_.]){re.escape(wanted)}$", _without_part(name), re.IGNORECASE)
        is not None
    )
    return is_type or wanted in (name, PurePosixPath(name).name)


def _without_part(name: str) -> str:
    """One name for all files that a large model is split into."""
    return SPLIT.sub("", PurePosixPath(name).stem)


def _advice(names: Iterable[str], job: Json) -> str:
    known = sorted({_without_part(name) for name in names if name.endswith(".gguf")})
    more = f" and {len(known) - MOST_NAMED} more" if len(known) > MOST_NAMED else ""
    listed = ", ".join(known[:MOST_NAMED]) or "none"
    return f"name one of its files as {job['repository']}:TYPE (it has {listed}{more})."


def _download(job: Json, files: list[Json], progress: "DownloadProgress") -> Path:
    """Return the folder in the shared cache."""
    from huggingface_hub import snapshot_download, try_to_load_from_cache
    from huggingface_hub.utils import tqdm

    class Counted(tqdm):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.is_bytes, self.done = (
                options.get("unit") == "B",
                0,
            )  # a bar that is not shown counts nothing

        def update(self, n: float | None = 1) -> bool | None:
            self.done += int(n or 0)
            if self.is_bytes:
                progress.tell(self.done)
            return super().update(n)  # type: ignore[no-any-return]

    def is_there(name: str) -> bool:
        return isinstance(
            try_to_load_from_cache(job["repository"], name, revision=job["revision"]), str
        )

    _refuse_without_room(sum(file["size_bytes"] for file in files if not is_there(file["name"])))
    names = [file["name"] for file in files]
    found = snapshot_download(
        job["repository"],
        revision=job["revision"],
        allow_patterns=names,
        max_workers=AT_ONCE,
        tqdm_class=Counted,
    )
    return Path(found)


class DownloadProgress:
    """The bytes of all files together; told a few times a second."""

    def __init__(self, reports: Reports, total: int) -> None:
        self._reports, self._total, self._done, self._told_at = reports, total, 0, 0.0
        self._lock = threading.Lock()

    def tell(self, done: int) -> None:
        with self._lock:
            self._done = max(self._done, done)  # a bar of what arrives, and one of what is written
            if time.monotonic() - self._told_at >= TOLD_EVERY_S:
                self._told_at = time.monotonic()
                self._reports.send("progress", done=self._done, total=self._total)


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
    first_line = (str(error).strip().splitlines() or ["no message"])[0].replace(
        get_token() or "\n", "***"
    )
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
        "unreachable": any(map(_is_unreachable, causes)),
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

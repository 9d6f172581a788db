"""Where a study lies: a folder of this machine, or a place in an object store."""

from pathlib import Path

from bitbench.ground.errors import StoreError, UsageError
from bitbench.store.folder import StudyFolder
from bitbench.store.objects import SCHEME, ObjectStore


def folder_at(place: str, home: Path) -> StudyFolder:
    """`place`: a path, or s3://BUCKET/…/STUDY."""
    if place.startswith(SCHEME):
        from bitbench.store.remote_folder import RemoteFolder  # brings DuckDB

        return RemoteFolder(_study_url(place), home)
    if "://" in place:
        raise UsageError(f"{place} is neither a folder nor a place that begins with {SCHEME}")
    return StudyFolder(Path(place))


def pull_study(url: str, into: Path | None) -> StudyFolder:
    """A copy of a study in an object store, also of one that is still running."""
    from bitbench.store.remote_folder import pull

    store = ObjectStore(_study_url(url))
    folder = StudyFolder(into or Path(store.url.rpartition("/")[2]))
    if store.read("lock.json") is None:
        raise StoreError(
            f"{store.url} contains no study (no lock.json); `bitbench run STUDY --into {store.url}` fills it"
        )
    if folder.lock_file.exists() or folder.study_file.exists():
        raise StoreError(f"{folder.path} already contains a study; give another folder")
    pull(store, folder.path)
    return folder


def _study_url(url: str) -> str:
    """A bucket alone is where studies lie, and no study itself."""
    bucket, _, path = url.removeprefix(SCHEME).strip("/").partition("/")
    if not bucket or not path or not url.startswith(SCHEME):
        raise UsageError(f"{url} does not name a study; write {SCHEME}BUCKET/STUDY")
    return f"{SCHEME}{bucket}/{path}"

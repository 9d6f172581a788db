"""An object store below one URL: objects that are created once, or replaced only where they are still what was read.

Whoever writes relies on the server's conditions (If-None-Match, If-Match). Some servers take them and do nothing, so
each is tried out before the first record is written.
"""

import contextlib
import secrets
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from bitbench.util.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

READERS = 16  # objects that are read at once
LARGEST_OBJECT_BYTES = 2**30
SCHEME = "s3://"


class StoredObject(NamedTuple):
    name: str
    etag: str
    size: int


class ObjectExistsError(Exception):
    """Somebody else has created it, with other content."""


class ObjectChangedError(Exception):
    """It is no longer what was read."""


class ObjectStore:
    """Names are relative to `url`. Everything but the two above raises StoreError."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._api, self._store = _opened(self.url)

    def read(self, name: str) -> tuple[bytes, str] | None:
        """Content and tag; None where there is no such object."""
        with self._plainly(name):
            try:
                found = self._api.get(self._store, name)
                if found.meta["size"] > LARGEST_OBJECT_BYTES:
                    raise StoreError(f"{self.url}/{name} is larger than {LARGEST_OBJECT_BYTES // 2**20:,} MiB")
                return bytes(found.bytes()), str(found.meta["e_tag"])
            except FileNotFoundError:
                return None

    def has(self, name: str) -> bool:
        with self._plainly(name):
            try:
                self._api.head(self._store, name)
            except FileNotFoundError:
                return False
            return True

    def read_all(self, names: Iterable[str]) -> list[bytes]:
        """Several at once, in the order of their names; one that is gone meanwhile is left out."""
        with ThreadPoolExecutor(READERS) as readers:
            return [found[0] for found in readers.map(self.read, names) if found is not None]

    def list(self, prefix: str = "") -> list[StoredObject]:
        with self._plainly(prefix):
            found = [
                StoredObject(str(entry["path"]), str(entry["e_tag"]), int(entry["size"]))
                for page in self._api.list(self._store, prefix=prefix or None)
                for entry in page
            ]
        return sorted(found)

    def create(self, name: str, content: bytes) -> str:
        """Its tag. Raises ObjectExistsError where it exists with other content: after an answer that was lost on the
        way, our own object is what exists."""
        from obstore.exceptions import AlreadyExistsError

        with self._plainly(name):
            try:
                return str(self._api.put(self._store, name, content, mode="create")["e_tag"])
            except AlreadyExistsError:
                known = self.read(name)
        if known is not None and known[0] == content:
            return known[1]
        raise ObjectExistsError(name)

    def replace(self, name: str, content: bytes, etag: str) -> str:
        """Only what has this tag. Raises ObjectChangedError."""
        from obstore.exceptions import PreconditionError

        with self._plainly(name):
            try:
                return str(self._api.put(self._store, name, content, mode={"e_tag": etag})["e_tag"])
            except PreconditionError:
                raise ObjectChangedError(name) from None

    def write(self, name: str, content: bytes) -> None:
        """Whatever was there: for what can be made again from the rest."""
        with self._plainly(name):
            self._api.put(self._store, name, content)

    def remove(self, name: str) -> None:
        with self._plainly(name):
            self._api.delete(self._store, name)

    def probe(self) -> None:
        """Raises StoreError for a server that ignores conditions: with it two writers would overwrite each other."""
        name = f"probe/{secrets.token_hex(8)}"
        kept = []
        try:
            first = self.create(name, b"first")
            try:
                self.create(name, b"second")
            except ObjectExistsError:
                kept.append("create")
            changed = self.replace(name, b"third", first)
            try:
                self.replace(name, b"fourth", first)
            except ObjectChangedError:
                kept.append("replace")
            found = self.read(name)
        finally:
            with contextlib.suppress(StoreError):  # what the probe found is more telling than what it left behind
                self.remove(name)
        if kept != ["create", "replace"] or found != (b"third", changed):
            raise StoreError(
                f"the server of {self.url} ignores conditional writes (If-None-Match, If-Match), so records could be "
                "overwritten; use a store that keeps them, such as S3, SeaweedFS or MinIO, or a local folder"
            )

    @contextmanager
    def _plainly(self, name: str) -> "Iterator[None]":
        """What the client says, as a sentence with what to do."""
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError) as error:
            cause = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            raise StoreError(
                f"{self.url}/{name} cannot be reached ({cause}); check the bucket, AWS_ENDPOINT_URL and the keys"
            ) from error


def _opened(url: str) -> tuple[Any, Any]:
    if not url.startswith(SCHEME):
        raise StoreError(f"{url} is not a place in an object store; it begins with {SCHEME}")
    try:
        import obstore
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError as error:
        raise StoreError("s3:// needs obstore; `pip install bitbench[storage]` installs it") from error
    try:
        return obstore, from_url(url, client_options={"timeout": "60s", "allow_http": True})
    except (BaseError, ValueError) as error:
        raise StoreError(f"{url} cannot be opened: {str(error).splitlines()[0][:200]}") from error

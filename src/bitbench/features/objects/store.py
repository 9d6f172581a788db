"""An object store below one URL: objects that are created once or replaced only where they are still what was read,
and the lease of the one who writes.

Whoever writes relies on the server's conditions (If-None-Match, If-Match). Some servers take them and do nothing, so
each is tried out before the first record is written.

No clock is compared with another machine's: who wants a lease that is held watches it for as long as it lasts, and
takes it only where it was not renewed meanwhile. Each taking has a higher epoch.
"""

import os
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from pydantic import Field

from bitbench.records.strict_reader import parse_record
from bitbench.study.base import Record
from bitbench.util.errors import StoreError

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
            with suppress(StoreError):  # what the probe found is more telling than what it left behind
                self.remove(name)
        if kept != ["create", "replace"] or found != (b"third", changed):
            raise StoreError(
                f"the server of {self.url} ignores conditional writes (If-None-Match, If-Match), so records could be "
                "overwritten; use a store that keeps them, such as S3, SeaweedFS or MinIO, or a local folder"
            )

    @contextmanager
    def _plainly(self, name: str) -> Iterator[None]:
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


NAME = "writer.json"
LEASE_FORMAT = 1  # 1: first published form
LASTS_S = 60.0
RENEWALS = 4  # in that time: three may be lost


class LeaseState(Record):
    format: int = LEASE_FORMAT
    epoch: int
    machine: str  # hash of its boot: a process of it is known to be dead by its number
    pid: int
    turn: str  # another with each renewal, so that the object changes
    lasts_s: float = Field(gt=0, le=3600)  # without a renewal; who wants it watches for so long
    is_released: bool = False


class Lease:
    """Held from `with` to its end, or until it is lost: then `check` raises StoreError."""

    def __init__(self, store: ObjectStore, *, lasts_s: float = LASTS_S) -> None:
        self._store, self._lasts_s = store, lasts_s
        self._ended = threading.Event()
        self._renewal = threading.Thread(target=self._renew_until_ended, name="lease", daemon=True)
        self._etag = ""
        self._renewed = 0.0
        self._is_lost = False
        self.state = LeaseState(epoch=0, machine="", pid=0, turn="", lasts_s=lasts_s)

    def __enter__(self) -> "Lease":
        self._take()
        self._renewal.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._renewal.join()
        if not self._is_lost:
            with suppress(StoreError):  # it ends by itself, and everything else is written
                self._put(self._next(is_released=True))

    def check(self) -> None:
        """Before each write: a process that was stopped for longer than the lease lasts must not go on."""
        if self._is_lost or _now() - self._renewed > self._lasts_s:
            raise StoreError(
                f"another bitbench took over {self._store.url} while this one was stopped or without network; what was "
                "written before is kept"
            )

    def _take(self) -> None:
        found = self._store.read(NAME)
        if found is None:
            self._put(self._own(epoch=1))
            return
        state = parse_record(
            found[0], LeaseState, LEASE_FORMAT, f"{self._store.url}/{NAME}", "remove it to take it over"
        )
        if not state.is_released and not _is_dead(state) and self._is_renewed(found[1], state.lasts_s):
            raise StoreError(f"another bitbench is writing to {self._store.url}; wait, or use another place")
        self._etag = found[1]
        self._put(self._own(epoch=state.epoch + 1))

    def _is_renewed(self, etag: str, lasts_s: float) -> bool:
        until = _now() + lasts_s
        while _now() < until:
            time.sleep(min(1.0, lasts_s / 10))
            now = self._store.read(NAME)
            if now is None or now[1] != etag:
                return True
        return False

    def _own(self, *, epoch: int) -> LeaseState:
        turn = secrets.token_hex(8)
        return LeaseState(epoch=epoch, machine=_this_machine(), pid=os.getpid(), turn=turn, lasts_s=self._lasts_s)

    def _next(self, *, is_released: bool = False) -> LeaseState:
        return self.state.model_copy(update={"turn": secrets.token_hex(8), "is_released": is_released})

    def _put(self, state: LeaseState) -> None:
        content = state.model_dump_json().encode()
        began = _now()
        try:
            if self._etag:
                self._etag = self._store.replace(NAME, content, self._etag)
            else:
                self._etag = self._store.create(NAME, content)
        except (ObjectExistsError, ObjectChangedError):
            self._is_lost = True
            raise StoreError(f"another bitbench is writing to {self._store.url}; wait, or use another place") from None
        self._renewed, self.state = began, state

    def _renew_until_ended(self) -> None:
        while not self._ended.wait(self._lasts_s / RENEWALS):
            try:
                self._put(self._next())
            except StoreError:  # the network may come back; a lease that is lost stays so
                if self._is_lost:
                    return


def _this_machine() -> str:
    """Another after each start of the machine, and in each container: process numbers mean something only within.
    Empty where the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return ""
    return sha256(f"{boot} {namespace}".encode()).hexdigest()[:16]


def _is_dead(state: LeaseState) -> bool:
    """Only where it ran here can this be known."""
    is_here = state.machine != "" and state.machine == _this_machine()
    return is_here and state.pid != os.getpid() and not Path(f"/proc/{state.pid}").exists()


def _now() -> float:
    """Goes on while the machine sleeps, where there is such a clock: others do not sleep with it."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

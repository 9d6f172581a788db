"""Who writes to a study in an object store: one at a time, by an object that its holder renews.

No clock is compared with another machine's: who wants a lease that is held watches it for as long as it lasts, and
takes it only where it was not renewed meanwhile. Each taking has a higher epoch.
"""

import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import TracebackType

from pydantic import Field

from bitbench.features.objects.store import ObjectChangedError, ObjectExistsError, ObjectStore
from bitbench.records.strict_reader import parse
from bitbench.study.base import Record
from bitbench.util.errors import StoreError

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
        state = parse(found[0], LeaseState, LEASE_FORMAT, f"{self._store.url}/{NAME}", "remove it to take it over")
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
            write: Callable[[], str] = (
                (lambda: self._store.replace(NAME, content, self._etag))
                if self._etag
                else (lambda: self._store.create(NAME, content))
            )
            self._etag = write()
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

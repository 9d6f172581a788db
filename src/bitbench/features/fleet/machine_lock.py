"""One block at a time on a machine, whoever asks for it."""

import socket
from types import TracebackType


class MachineBusy(Exception):
    """Another block runs here."""


class MachineLock:
    """An abstract socket name: machine-wide, of no user and no folder, and gone with the process that holds it.

    `slot`: this machine may be divided on purpose, as by `--on local:N`.
    """

    def __init__(self, slot: str = "") -> None:
        self._name = f"\0bitbench-machine{slot and '-'}{slot}"
        self._socket: socket.socket | None = None

    def __enter__(self) -> "MachineLock":
        held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            held.bind(self._name)
        except OSError:
            held.close()
            raise MachineBusy from None
        self._socket = held
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._socket is not None:
            self._socket.close()

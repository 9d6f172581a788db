"""The load client reads sockets by its receiver, and encrypted ones by transports: tests of both ways."""

import pytest

from bitbench.loadgen import connection
from tests.length import by_length

BOTH = (pytest.param(True, id="receiver"), pytest.param(False, id="transport"))
WAYS = by_length((BOTH[0],), BOTH)


def choose(receiver: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not receiver:
        monkeypatch.setattr(connection, "Receiver", lambda _timers: None)

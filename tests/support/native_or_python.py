"""The load client reads in native code where it was built, and in Python where it was not: tests of both ways."""

import importlib.util

import pytest

from bitbench.loadgen import connection
from bitbench.util.http import response
from tests.length import by_length

HAS_NATIVE = importlib.util.find_spec("bitbench._native") is not None
BOTH = (
    pytest.param(True, id="native", marks=pytest.mark.skipif(not HAS_NATIVE, reason="the native part was not built")),
    pytest.param(False, id="python"),
)
# tests/unit/test_reader_fuzz.py compares both on thousands of answers; tables of cases then need one of them.
WAYS = by_length((BOTH[0] if HAS_NATIVE else BOTH[1],), BOTH)


def choose(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        monkeypatch.setattr(connection, "NativeReceiver", None)
        monkeypatch.setattr(response, "NativeParts", None)

"""A timer that wakes an event loop on the microsecond. Loops round their own timers to milliseconds."""

import contextlib
import ctypes
import os
import time

_CLOCK = time.CLOCK_MONOTONIC  # the clock of time.monotonic(), one for all processes of a machine
_ABSOLUTE = 1  # TFD_TIMER_ABSTIME
_EARLIEST_NS = 1  # zero would disarm the timer


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Timer:
    """Becomes readable at the moment it was armed for. Linux; the standard library has it from Python 3.13 on."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor: int = self._libc.timerfd_create(_CLOCK, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._setting = _Setting()
        self._reference = ctypes.byref(self._setting)

    def fileno(self) -> int:
        return self._descriptor

    def arm(self, due: float) -> None:
        """Fire once at `due` on time.monotonic(); at once where that has passed. Replaces what was armed before."""
        value = self._setting.value
        value.seconds, value.nanoseconds = divmod(max(int(due * 1e9), _EARLIEST_NS), 10**9)
        if self._libc.timerfd_settime(self._descriptor, _ABSOLUTE, self._reference, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def acknowledge(self) -> None:
        """Take note that it fired: it is no longer readable."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._descriptor, 8)

    def close(self) -> None:
        os.close(self._descriptor)

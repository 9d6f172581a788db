"""A timer that wakes an event loop within microseconds. Loops round their own timers to
milliseconds.
"""

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
    """A timer whose descriptor becomes readable at the armed time.

    Linux only. The standard library has it from Python 3.13 on.
    """

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
        """Set the timer to fire once at `due` on time.monotonic(), or now if that has passed."""
        due_ns = max(int(due * 1e9), _EARLIEST_NS)
        value = self._setting.value
        value.seconds, value.nanoseconds = divmod(due_ns, 10**9)
        if self._libc.timerfd_settime(self._descriptor, _ABSOLUTE, self._reference, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def acknowledge(self) -> None:
        """Make the timer unreadable again after it fired."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._descriptor, 8)

    def close(self) -> None:
        os.close(self._descriptor)

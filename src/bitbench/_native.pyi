"""Types of the native module, which native/src/module.cpp defines.

The module may be missing at run time.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from bitbench.engines.workers.null_server import StreamPlan

class NullServer:
    """The serving loop of the null engine. It sends each part of a response at its due time."""

    def __init__(
        self,
        port: int,
        respond: Callable[[str, str, str, bytes], bytes | StreamPlan],
        *,
        per_stream: float,
        capacity: int | None,
        stall_at_s: float | None,
        stall_for_s: float,
    ) -> None: ...
    def serve(self) -> None:
        """Serve until `respond` raises an exception, and raise that exception."""

    def take_truth(self) -> dict[str, float | None]:
        """Return what was really sent since the last call. Only `respond` may call this."""

class Parts:
    """A response body with the bytes and the time of each read. Its size has a limit."""

    def __init__(self, limit_bytes: int) -> None: ...
    @property
    def times(self) -> list[float]: ...
    @property
    def lengths(self) -> list[int]: ...
    @property
    def body(self) -> bytes: ...
    @property
    def last_time(self) -> float | None: ...
    @property
    def limit_bytes(self) -> int: ...
    @property
    def body_bytes(self) -> int: ...
    @property
    def about_bytes(self) -> int: ...
    def __len__(self) -> int: ...
    def take_chunk(self, data: bytes, time: float) -> bool: ...
    def add(self, content: bytes, time: float) -> None: ...

class Receiver:
    """A reader of non-blocking sockets. Times are on the clock of time.monotonic()."""

    def __init__(self) -> None: ...
    def fileno(self) -> int:
        """Return a descriptor that is readable while a watched socket is readable."""

    def watch(self, descriptor: int) -> None: ...
    def yield_to(self, descriptor: int) -> None:
        """Make `receive` return at once when this descriptor of the event loop is readable."""

    def forget(self, descriptor: int) -> None:
        """Stop watching a socket. Call this before the socket is closed."""

    def keep_chunks(self, descriptor: int, parts: Parts) -> None:
        """Store reads of exactly one chunk in `parts`, until a read has another form."""

    def receive(self, *, may_wait: bool) -> list[tuple[int, bytes, int, float, float]]:
        """Return the other reads as (socket, data, errno, time of arrival, time of the read).

        Empty data means that the socket was closed, errno 0 that there was no error. The kernel
        sets the time of arrival. With `may_wait`, it sleeps between reads for up to a millisecond
        in total if chunks arrive at a high rate.
        """

class VptqMatrix:
    """A weight matrix for the CPU kernel, which reads the given arrays without a copy."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        column_scale: npt.NDArray[np.float32] | None = None,
        column_bias: npt.NDArray[np.float32] | None = None,
        permutation: npt.NDArray[np.int32] | None = None,
        bias: npt.NDArray[np.float32] | None = None,
        outliers: npt.NDArray[np.float32] | None = None,
    ) -> None: ...
    def add_segment(
        self,
        *,
        columns: int,
        main_bits: int,
        residual_bits: int,
        stream: npt.NDArray[np.uint8],
        main: npt.NDArray[np.uint8],
        main_scale: float,
        residual: npt.NDArray[np.uint8] | None = None,
        residual_scale: float = 0.0,
    ) -> None:
        """Add the next columns, in stored order. Raise ValueError if an array has a wrong size."""

    def multiply(
        self, x: object, y: object, *, activation_bits: int = 8, threads: int = 1, isa: str = ""
    ) -> None:
        """Compute y = x W^T + bias.

        x and y are dense float32 or bfloat16 arrays of torch or numpy, used in place.
        """

    def multiply_at(
        self,
        x: int,
        y: int,
        *,
        rows: int,
        bfloat16: bool,
        activation_bits: int,
        threads: int,
        isa: str = "",
    ) -> None:
        """Compute `multiply` on addresses of dense rows.

        No argument can be checked, so only `features.vptq.multiply` calls this.
        """

def vptq_isas() -> list[str]:
    """Return the VPTQ kernel's instruction sets that this machine can run, best first.

    If BITBENCH_ISA is set, the list starts at its instruction set. Raise ValueError if the
    processor cannot run that one.
    """

def openmp_runtime() -> str:
    """Return the file of the OpenMP runtime in use, or an empty text if none is loaded."""

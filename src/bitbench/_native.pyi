"""The native module as a type checker sees it; native/src/module.cpp makes it. It may be missing at run time."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from bitbench.engines.workers.null_server import StreamPlan

class NullServer:
    """The serving loop of the null engine: puts what `respond` returns on the wire, each part when it is due."""

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
        """Without end; an exception of `respond` comes out of it."""

    def take_truth(self) -> dict[str, float | None]:
        """What was really sent since this was asked last. From within `respond` alone."""

class Parts:
    """What each read added to the body of a response, and when; the body may have so many bytes."""

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
    """Reads sockets that do not block. Times are those of time.monotonic()."""

    def __init__(self) -> None: ...
    def fileno(self) -> int:
        """Readable while a socket is."""

    def watch(self, descriptor: int) -> None: ...
    def yield_to(self, descriptor: int) -> None:
        """Something that the event loop attends to: receive() returns to that at once where it is readable."""

    def forget(self, descriptor: int) -> None:
        """Before it is closed."""

    def keep_chunks(self, descriptor: int, parts: Parts) -> None:
        """Put reads that are one whole chunk there, until one is something else."""

    def receive(self, *, may_wait: bool) -> list[tuple[int, bytes, int, float, float]]:
        """The other reads: socket, data (empty: closed), errno (0: none), when the kernel had it, when it was read.

        Where it may, and chunks come thick and fast, it sleeps between readings for a millisecond in all.
        """

class VptqMatrix:
    """A weight matrix that the CPU kernel multiplies with; it reads the given arrays where they are."""

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
        """The next columns, in stored order; raises ValueError where an array does not have the size it needs."""

    def multiply(
        self, x: object, y: object, *, activation_bits: int = 8, threads: int = 1, isa: str = ""
    ) -> None:
        """y = x W^T + bias. Dense float32 or bfloat16 arrays of torch or numpy, used in place."""

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
        """The same from addresses of dense rows. Nothing can be checked: only `features.vptq.multiply` calls it."""

def vptq_isas() -> list[str]:
    """The instruction sets of the VPTQ kernel that this machine can run, best first.

    With BITBENCH_ISA in the environment, from the one that it names on; raises ValueError where the processor does not
    run that one.
    """

def openmp_runtime() -> str:
    """The file of the OpenMP runtime whose threads are used; empty while none is loaded."""

"""The native module as a type checker sees it; native/src/module.cpp makes it. It may be missing at run time."""

from collections.abc import Callable

from bitbench.engines.workers.null_answers import StreamPlan

class NullServer:
    """The serving loop of the null engine: `bitbench.engines.workers.null_loop.NullServer` in C++."""

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

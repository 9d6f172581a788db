"""The requests of a trial: what each one says and when it is due, made before the clock starts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bitbench.loadgen.arrivals import open_loop_times
from bitbench.loadgen.asks import Ask, asks_from_texts, asks_from_trace, asks_of_random_ids
from bitbench.loadgen.inputs import trace_rows
from bitbench.loadgen.wire import request_bytes
from bitbench.ports import LoadJob
from bitbench.study.arrival import Trace
from bitbench.study.workload import Workload


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """`at_s` counts from the trial's start; None: `think_s` after the request before it on its `stream` has ended.

    A stream is one client that waits for its answers; None where requests come on a schedule (open loop).
    """

    number: int  # within the trial, over all workers
    data: bytes
    stream: int | None
    at_s: float | None
    asked_input_tokens: int | None
    asked_output_tokens: int | None
    most_output_tokens: int  # what its answer may have; the same where an exact length is asked for
    think_s: float = 0.0  # planned this long after the end of the one before; only where `at_s` is None


class Slot(NamedTuple):
    """When a request is due, and which of the asks it is."""

    ask: int
    stream: int | None
    at_s: float | None
    think_s: float


def plan_requests(
    job: LoadJob, owns: Callable[[int, int | None], bool] = lambda _number, _stream: True
) -> list[PlannedRequest]:
    """Every request of the trial, in the order in which they are begun as far as that is known; or those that the
    caller `owns`, by their number and stream.

    The same job gives the same requests at the same times; nothing in it depends on an answer.
    """
    asks, slots = _plan(job)
    workload = job.workload
    batch_size = None if workload.open_loop else workload.concurrency
    own = [(number, slot) for number, slot in enumerate(slots) if owns(number, slot.stream)]
    wanted = {slot.ask for _, slot in own}
    # One after the other: as a list of numbers a prompt takes several times the room that its bytes do.
    made = {
        place: (
            request_bytes(job.endpoint, ask, api=workload.api, batch_size=batch_size),
            ask.input_tokens,
            ask.output_tokens,
        )
        for place, ask in enumerate(asks)
        if place in wanted
    }
    requests = []
    for number, slot in own:
        data, input_tokens, output_tokens = made[slot.ask]
        exactly = output_tokens if workload.output_forced else None
        requests.append(
            PlannedRequest(
                number, data, slot.stream, slot.at_s, input_tokens, exactly, output_tokens, think_s=slot.think_s
            )
        )
    return requests


def slots_of(job: LoadJob) -> Sequence[Slot]:
    """When each request of the trial is due, by its number; no prompt is made for that."""
    return _plan(job)[1]


def _plan(job: LoadJob) -> tuple[Iterator[Ask], Sequence[Slot]]:
    workload = job.workload
    if isinstance(workload.arrival, Trace):
        rows = trace_rows(workload, job.folder)
        speed = workload.arrival.speed
        slots = [Slot(number, None, row.at_s / speed, 0.0) for number, row in enumerate(rows)]
        return asks_from_trace(job, rows), slots
    count = workload.request_count
    assert count is not None
    asks = asks_of_random_ids(job, count) if workload.text is None else asks_from_texts(job, count)
    return asks, _on_schedule(job) if workload.open_loop else _on_streams(workload, count)


def _on_schedule(job: LoadJob) -> list[Slot]:
    """Conversations begin when they are due, whatever the server does; their later turns follow their answers."""
    turns = job.workload.turns
    times = open_loop_times(job.workload, job.seed)
    think_s = job.workload.conversation.think if job.workload.conversation else 0.0
    return [
        Slot(
            ask=conversation * turns + turn,
            stream=None if turns == 1 else conversation,
            at_s=float(due) if turn == 0 else None,
            think_s=think_s if turn else 0.0,
        )
        for turn in range(turns)
        for conversation, due in enumerate(times)
    ]


def _on_streams(workload: Workload, count: int) -> list[Slot]:
    """`concurrency` streams begin at zero; each goes on when its last answer is complete."""
    turns, streams = workload.turns, workload.concurrency
    think_s = workload.conversation.think if workload.conversation else 0.0
    conversations = count // turns
    slots = []
    for first in range(0, conversations, streams):
        for turn in range(turns):
            for conversation in range(first, min(first + streams, conversations)):
                slots.append(
                    Slot(
                        ask=conversation * turns + turn,
                        stream=conversation % streams,
                        at_s=0.0 if first == turn == 0 else None,
                        think_s=think_s if turn else 0.0,
                    )
                )
    return slots

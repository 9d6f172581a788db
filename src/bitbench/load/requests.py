"""The requests of a trial: what each one says and when it is due, made before the clock starts."""

from dataclasses import dataclass

from bitbench.core.ports import LoadJob
from bitbench.load.prompts import PromptSource
from bitbench.load.wire import completion_request


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
    think_s: float = 0.0  # planned this long after the end of the one before; only where `at_s` is None


def plan_requests(job: LoadJob) -> list[PlannedRequest]:
    """Every request of the trial, in the order in which they are begun."""
    prompts = PromptSource(job.vocabulary, job.seed)
    workload = job.workload
    return [
        PlannedRequest(
            number=number,
            data=completion_request(job.endpoint, workload, prompts.prompt(number, workload.input_tokens)),
            stream=number % workload.concurrency,
            at_s=0.0 if number < workload.concurrency else None,
            asked_input_tokens=workload.input_tokens,
            asked_output_tokens=workload.output_tokens,
        )
        for number in range(workload.request_count)
    ]

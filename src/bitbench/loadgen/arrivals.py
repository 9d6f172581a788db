"""When requests are due: seconds from the start of a trial, from the workload and the seed alone."""

import numpy as np
import numpy.typing as npt

from bitbench.loadgen.randomness import generator
from bitbench.study.arrival import Constant, Gamma, Poisson, Ramp
from bitbench.study.workload import Workload

Times = npt.NDArray[np.float64]


def open_loop_times(workload: Workload, seed: tuple[int, ...]) -> Times:
    """When each request, or each conversation, begins. The first one at zero; a trace has its own times."""
    assert workload.request_count is not None
    count = workload.request_count // workload.turns
    arrival = workload.arrival
    draw = generator(seed, "arrivals")
    match arrival:
        case Constant():
            return np.arange(count) / arrival.rate
        case Poisson():
            return _from_gaps(draw.exponential(1 / arrival.rate, count - 1))
        case Gamma():
            return _from_gaps(draw.gamma(arrival.burstiness, 1 / (arrival.rate * arrival.burstiness), count - 1))
        case Ramp():
            return _ramp(arrival, count, workload.duration)
        case _:
            raise ValueError(f"arrival {arrival.kind} has no schedule of its own")


def _from_gaps(gaps: Times) -> Times:
    return np.concatenate([[0.0], np.cumsum(gaps)])


def _ramp(ramp: Ramp, count: int, duration_s: float | None) -> Times:
    """Request k is due when the rate, added up from the start, has reached k.

    With the rate a + s·t that is a·t + s·t²/2 = k, so t = 2k / (a + √(a² + 2sk)): this form of the solution also
    holds for a rate that does not change or that starts at zero.
    """
    span_s = duration_s or 2 * count / (ramp.from_rate + ramp.to_rate)
    slope = (ramp.to_rate - ramp.from_rate) / span_s
    reached = np.arange(count, dtype=np.float64)
    rate_then = np.sqrt(np.maximum(ramp.from_rate**2 + 2 * slope * reached, 0.0))
    times = np.zeros(count)
    times[1:] = 2 * reached[1:] / (ramp.from_rate + rate_then[1:])
    return times

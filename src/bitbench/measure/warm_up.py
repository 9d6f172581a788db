"""When an engine is warm: short rounds of warm-up until two in a row take as long.

Where the first requests compile or tune kernels, one is not enough: SGLang on a GPU was seen to go from 1,187 to 11,266
tok/s over five runs (sglang#4858). On CPUs the records show that one suffices (docs/measurement.md).
"""

from collections.abc import Sequence

from bitbench.records.trial import TrialRecord
from bitbench.study.workload import Workload

AGREEMENT = 0.1  # of the shorter mean latency; rounds of a warm engine differ by a few percent
MOST_ROUNDS = 8
LIMIT_S = 60.0  # of all rounds of a workload together


def wants_round(workload: Workload, rounds: Sequence[TrialRecord], *, until_steady: bool) -> bool:
    """Whether this workload needs another round of warm-up. One that is the whole workload is long enough by itself."""
    if not rounds:
        return True
    if not until_steady or workload.warm_up is workload or is_steady(rounds):
        return False
    return len(rounds) < MOST_ROUNDS and sum(round_.duration_s or 0.0 for round_ in rounds) < LIMIT_S


def is_steady(rounds: Sequence[TrialRecord]) -> bool:
    """Whether the last two rounds agree."""
    times = [round_.metrics.latency_s for round_ in rounds[-2:]]
    known = [time for time in times if time is not None]
    return len(known) == 2 and max(known) <= (1 + AGREEMENT) * min(known)

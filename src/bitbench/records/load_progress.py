"""How a trial goes while it runs: for a display, never for a result."""

from bitbench.records.trial import WorkerHealth
from bitbench.study.base import Record


class Percentiles(Record):
    """Within 1 % of the values that they stand for."""

    p50_s: float
    p90_s: float
    p99_s: float


class LoadProgress(Record):
    """Sums over the client's processes, from the trial's start unless said otherwise."""

    elapsed_s: float
    requests: int  # of the trial, where all are sent
    sent: int
    running: int
    succeeded: int  # as far as is known before answers are decoded
    failed: int
    chunks: int  # parts of answers that came in a read of their own; most carry one token
    chunks_per_s: float  # since the last message
    requests_per_s: float  # that ended, since the last message
    ttft: Percentiles | None  # from the planned time to the first part of an answer
    itl: Percentiles | None  # gaps between parts, of the answers that have ended
    client: WorkerHealth  # the worst of each figure

"""How far another machine's monotonic clock is from ours, with a bound that cannot be wrong."""

import math
from dataclasses import dataclass

from bitbench.records.trial import ClockReading

_NS = 1e9


@dataclass
class ClockComparison:
    """Of exchanges: we send, it is asked, it answers, the answer arrives; the middle two on its own clock.

    It cannot be asked before we sent, nor can its answer arrive before it answered, whatever either way took: so its
    clock is ahead by `asked - sent` at most and by `answered - arrived` at least. More exchanges remove what was
    unusual in a way; half of the shortest round trip stays, since how it is divided cannot be known.
    """

    least_ns: float = -math.inf
    most_ns: float = math.inf

    def add(self, sent_ns: int, asked_ns: int, answered_ns: int, arrived_ns: int) -> None:
        self.least_ns = max(self.least_ns, answered_ns - arrived_ns)
        self.most_ns = min(self.most_ns, asked_ns - sent_ns)

    @property
    def offset_ns(self) -> int:
        return round((self.least_ns + self.most_ns) / 2)

    def reading(self) -> ClockReading:
        return ClockReading(offset_s=self.offset_ns / _NS, bound_s=abs(self.most_ns - self.least_ns) / 2 / _NS)

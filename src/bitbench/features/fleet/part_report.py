"""What one machine says about its part of a trial, in some kilobytes whatever the number of its requests."""

from collections.abc import Sequence

import numpy as np

from bitbench.loadgen.progress import Snapshot
from bitbench.loadgen.sketch import RELATIVE_ERROR, LatencySketch, SketchCounts
from bitbench.ports import LoadResult
from bitbench.records.request_rows import RequestRows
from bitbench.records.trial import ClientHealth, SketchedTimes
from bitbench.study.base import Record
from bitbench.study.metrics import PROMISED

SKETCHED = (*PROMISED, "itl")  # by their names in the registry of metrics


class PartProgress(Record):
    """How a part goes, by the load workers of its machine."""

    workers: tuple[Snapshot, ...]


class PartReport(Record):
    """Sketches are of complete requests, as the figures of a trial are. Time zero is that of all parts."""

    requests: int
    health: ClientHealth
    duration_s: float
    sketches: dict[str, SketchCounts]

    @classmethod
    def of(cls, part: LoadResult) -> "PartReport":
        rows = RequestRows(part.requests).complete()
        return cls(
            requests=part.requests.num_rows,
            health=part.health,
            duration_s=part.duration_s,
            sketches={name: _sketch(rows, name) for name in SKETCHED},
        )


def merged_times(parts: Sequence[PartReport]) -> dict[str, SketchedTimes]:
    """As good as one sketch of all values; without a time that no request has."""
    merged = {name: LatencySketch.of(*(part.sketches[name] for part in parts)) for name in SKETCHED}
    found = {}
    for name, sketch in merged.items():
        p50_s, p90_s, p99_s = (sketch.quantile(share) for share in (0.50, 0.90, 0.99))
        if p50_s is not None and p90_s is not None and p99_s is not None:
            found[name] = SketchedTimes(
                count=sketch.count, p50_s=p50_s, p90_s=p90_s, p99_s=p99_s, relative_error=RELATIVE_ERROR
            )
    return found


def _sketch(rows: RequestRows, name: str) -> SketchCounts:
    times, sketch = rows.time(name), LatencySketch()
    sketch.add_all(times[~np.isnan(times)])
    return sketch.counts()

"""Single requests of a cell: how their times are spread, over all of its trials."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bitbench.core.cell import Cell
from bitbench.core.found.metrics import METRICS
from bitbench.core.found.summary import RequestSpread
from bitbench.core.recorded.trial import TrialRecord
from bitbench.rows.request_rows import RequestRows

COLUMNS = ("request", "planned_s", "first_token_s", "end_s", "status")  # all that is read of a row
MIN_REQUESTS = 20  # of a cell: the 5th and the 95th percentile of fewer are single requests
_TIMES = {METRICS[name].column: name for name in ("ttft", "latency")}
_PERCENTILES = (5, 50, 95, 99)


def worth_reading(trials: Iterable[TrialRecord]) -> dict[Cell, list[TrialRecord]]:
    """The trials that count and have rows, of the cells with enough requests."""
    of_cell: dict[Cell, list[TrialRecord]] = {}
    for trial in trials:
        if trial.counts and trial.requests_file is not None:
            of_cell.setdefault(trial.cell, []).append(trial)
    return {cell: own for cell, own in of_cell.items() if sum(one.requests for one in own) >= MIN_REQUESTS}


def spread_of_requests(cell: Cell, rows: Iterable[tuple[str, pa.Table]]) -> list[RequestSpread]:
    """From the rows of each trial (its id, and COLUMNS); times count from the planned send, of complete requests."""
    ids: list[str] = []
    parts: dict[str, list[npt.NDArray[np.float32]]] = {metric: [] for metric in _TIMES}
    numbers: list[npt.NDArray[np.int32]] = []
    for trial_id, table in rows:
        complete = RequestRows(table).complete()
        ids.append(trial_id)
        numbers.append(complete.column("request").astype(np.int32))
        for metric, time in _TIMES.items():
            parts[metric].append(complete.time(time).astype(np.float32))
    spreads = (_spread(cell, metric, ids, parts[metric], numbers) for metric in _TIMES)
    return [spread for spread in spreads if spread is not None]


def _spread(
    cell: Cell,
    metric: str,
    ids: Sequence[str],
    parts: Sequence[npt.NDArray[np.float32]],
    numbers: Sequence[npt.NDArray[np.int32]],
) -> RequestSpread | None:
    values = np.concatenate(parts) if parts else np.empty(0, dtype=np.float32)
    known = values[~np.isnan(values)]
    if known.size < MIN_REQUESTS:
        return None
    place = int(np.nanargmax(values))
    trial = int(np.searchsorted(np.cumsum([part.size for part in parts]), place, side="right"))
    p5, p50, p95, p99 = (float(one) for one in np.percentile(known, _PERCENTILES))
    return RequestSpread(
        cell=cell,
        metric=metric,
        requests=int(known.size),
        p5=p5,
        p50=p50,
        p95=p95,
        p99=p99,
        highest=float(values[place]),
        highest_trial=ids[trial],
        highest_request=int(np.concatenate(numbers)[place]),
    )

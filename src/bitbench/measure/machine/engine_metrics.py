"""What an engine counted during a trial, by its own GET /metrics: read before and after, never while it is measured."""

from bitbench.ports import Endpoint
from bitbench.records.trial import EngineMetrics
from bitbench.util.http.samples import Samples, fetch_samples


def read_metrics(endpoint: Endpoint) -> Samples | None:
    """None where the server is known to have none, or does not answer: that is never the failure of a trial."""
    return fetch_samples(endpoint.url, endpoint.api_key) if endpoint.metrics else None


def engine_metrics(endpoint: Endpoint, before: Samples | None, after: Samples | None) -> EngineMetrics | None:
    """How much counters grew, and what gauges show in the end. None where either reading is missing."""
    if before is None or after is None:
        return None
    raw: dict[str, float] = {}
    figures: dict[str, float | None] = {}
    for figure, name in endpoint.metrics.items():
        if after.kinds.get(name) == "histogram":
            grown = {part: _growth(before, after, part) for part in (f"{name}_sum", f"{name}_count")}
            total, count = grown.values()
            figures[figure] = total / count if total is not None and count else None
        else:
            is_counter = after.kinds.get(name) == "counter"
            grown = {name: _growth(before, after, name) if is_counter else after.values.get(name)}
            figures[figure] = grown[name]
        raw |= {part: value for part, value in grown.items() if value is not None}
    return EngineMetrics.model_validate({**figures, "raw": raw}) if raw else None


def _growth(before: Samples, after: Samples, name: str) -> float | None:
    """None where it is not counted, or was counted from zero again meanwhile."""
    if (now := after.values.get(name)) is None:
        return None
    grown = now - before.values.get(name, 0.0)
    return grown if grown >= 0 else None

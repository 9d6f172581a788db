"""What a server counts about itself, in the text form that Prometheus reads. Any line that is none is passed over.

The format: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

import math
import re
from dataclasses import dataclass, field

from bitbench.util.http.connection import BadAnswer, PlainConnection
from bitbench.util.http.limits import PLAIN_BYTES

_LIMIT_S = 2.0  # a server that is well answers within milliseconds; one that is not must not hold up its trial
_OK = 200
_MOST_LINES = 20_000  # vLLM has some hundred, with a line for each bucket of its histograms
_LONGEST_LINE = 2_000
_TYPE = re.compile(r"# TYPE ([A-Za-z_:][\w:]*) (counter|gauge|histogram|summary|untyped)", re.ASCII)
# Labels may hold anything between quotes, also a brace: the last one is theirs.
_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{.*\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?", re.ASCII)


@dataclass(frozen=True)
class Samples:
    """By name, without labels: of a gauge the largest, of all else the sum over labels."""

    values: dict[str, float] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)


def fetch_samples(url: str, api_key: str = "") -> Samples | None:
    """What GET /metrics of a server says; None where there is none, or no answer."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with PlainConnection(url, limit_s=_LIMIT_S, limit_bytes=PLAIN_BYTES) as connection:
            answer = connection.ask("GET", "/metrics", {**headers, "Accept": "text/plain"})
    except (OSError, BadAnswer):
        return None
    return read_samples(answer.body.decode("utf-8", "replace")) if answer.status == _OK else None


def read_samples(text: str) -> Samples:
    found = Samples()
    for line in text.splitlines()[:_MOST_LINES]:
        if len(line) > _LONGEST_LINE:
            continue
        if kind := _TYPE.fullmatch(line.rstrip()):
            found.kinds[kind[1]] = kind[2]
        elif (sample := _SAMPLE.fullmatch(line.rstrip())) and (value := _number(sample[2])) is not None:
            name, known = sample[1], found.values.get(sample[1])
            is_gauge = found.kinds.get(name) == "gauge"
            found.values[name] = value if known is None else max(known, value) if is_gauge else known + value
    return found


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None

"""All metrics, each defined once: name, unit, direction, meaning, source and number of requests.

Verdicts, objectives, `--slo`, `--fail-if`, `measure.metric`, CSV, JSON, SQL and the documents use
this list only. Metrics of request rows are computed in `bitbench.records`.

A metric has one name, such as `ttft_p99`. A number that appears alone (in a record, CSV, JSON or
SQL) needs its unit. So a time has a suffix there: `ttft_p99_s`. Everything that reads a name
accepts both spellings. A mean over requests has the plain name: `ttft`. The spelling `ttft_mean`
is accepted too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, get_args

Statistic = Literal["mean", "p50", "p90", "p95", "p99"]
Promised = Literal["ttft", "tpot", "latency"]  # request times that a service can promise
PrimaryMetricName = Literal["output_throughput", "latency", "ttft", "tpot"]
STATISTICS: tuple[Statistic, ...] = get_args(Statistic)
PROMISED: tuple[Promised, ...] = get_args(Promised)
PRIMARY_METRICS: tuple[PrimaryMetricName, ...] = get_args(PrimaryMetricName)

# A percentile is reported only with this many requests beyond it. Their number is then known to
# about a third of itself (1/√10). The 99th percentile of 100 requests is about the slowest one.
LEAST_BEYOND = 10
NEEDED = {
    "mean": 1,
    "p50": 20,
    "p90": 100,
    "p95": 200,
    "p99": 1000,
}  # requests, of all trials together
# Requests of ten tokens or more each: they have as many gaps as a p99 needs.
NEEDED_FOR_GAPS = 100


class FigureSource(StrEnum):
    """The measurements that a metric is computed from."""

    ROWS = "request rows"
    MEMORY = "memory"
    COUNTERS = "a GPU's counters"
    SCORES = "scored tokens"


@dataclass(frozen=True)
class Metric:
    """A metric with its names, unit, direction and definition."""

    name: str  # as people write it: "ttft_p99"
    label: str  # as a column's title: "TTFT p99"
    words: str  # as in a sentence: "time to first token, 99th percentile"
    unit: str  # "s", "tok/s", "req/s", "bytes", "J/tok", or for quality "nats", "%" or ""
    higher_is_better: bool
    meaning: str  # one sentence
    source: FigureSource = FigureSource.ROWS
    time: str | None = None  # the time of a request (or gap) that `statistic` summarizes
    statistic: Statistic | None = None
    needs: int = 1  # requests, of all trials together
    is_recorded: bool = True  # False: only pooled requests have it, not the record of a trial

    @property
    def percent(self) -> float | None:
        """Return 99 for a p99. None if the metric is not a percentile."""
        if self.statistic in (None, "mean"):
            return None
        return float(self.statistic.removeprefix("p"))

    @property
    def is_tail(self) -> bool:
        """Return True for a percentile above the median. With few requests it is their slowest."""
        return self.percent is not None and self.percent > 50

    @property
    def moves_with(self) -> str | None:
        """Return the metric whose limit also applies to this one if the client is late.

        None if a late client does not change this metric. See `loadgen.verdict`.
        """
        if self.name in ("first_answer", "input_throughput"):
            return "ttft"
        if self.time is not None:
            return self.time
        if self.source in (FigureSource.ROWS, FigureSource.COUNTERS):
            return "output_throughput"
        return None

    @property
    def column(self) -> str:
        """Return the name with its unit, for a number that appears alone."""
        if self.unit == "s":
            return f"{self.name}_s"
        return self.name


_STATISTIC_WORDS = {
    "mean": ("", "", "Mean"),
    "p50": (" p50", ", median", "Median"),
    "p90": (" p90", ", 90th percentile", "90th percentile"),
    "p95": (" p95", ", 95th percentile", "95th percentile"),
    "p99": (" p99", ", 99th percentile", "99th percentile"),
}


def _make_time(
    time: str,
    statistic: Statistic,
    label: str,
    words: str,
    meaning: str,
    *,
    note: str = "",
    is_recorded: bool = True,
) -> Metric:
    """Make the metric of a statistic over the requests of a trial."""
    label_suffix, words_suffix, summary = _STATISTIC_WORDS[statistic]
    name = time
    if statistic != "mean":
        name = f"{time}_{statistic}"
    return Metric(
        name=name,
        label=label + label_suffix,
        words=words + words_suffix,
        unit="s",
        higher_is_better=False,
        meaning=f"{summary} over requests of {meaning}{note}.",
        time=time,
        statistic=statistic,
        needs=NEEDED[statistic],
        is_recorded=is_recorded,
    )


_LATENCY = ("Latency", "latency", "the end of the stream − the planned send")
_TTFT = ("TTFT", "time to first token", "the first token − the planned send")
_TPOT = (
    "TPOT",
    "time per output token",
    "(last token − first token) / (output tokens after the first chunk)",
)


def _make_rate(name: str, label: str, words: str, unit: str, meaning: str) -> Metric:
    return Metric(name, label, words, unit, higher_is_better=True, meaning=meaning)


def _make_metric(
    name: str,
    label: str,
    words: str,
    unit: str,
    meaning: str,
    *,
    source: FigureSource,
    higher_is_better: bool = False,
) -> Metric:
    return Metric(name, label, words, unit, higher_is_better, meaning, source)


# In the order in which a report explains them.
# fmt: off
_RECORDED = (
    _make_rate("output_throughput", "Output", "output throughput", "tok/s",
          "Output tokens of all requests / makespan (last end − first planned send)."),
    _make_time("latency", "mean", *_LATENCY),
    _make_time("ttft", "mean", *_TTFT),
    _make_time("ttft", "p50", *_TTFT),
    _make_time("ttft", "p99", *_TTFT),
    _make_time("first_answer", "mean", "First answer", "time to first answer token",
          "the first token of the answer, after any reasoning, − the planned send",
          note="; only where reasoning came"),
    _make_time("tpot", "mean", *_TPOT, note="; not defined for one token"),
    _make_time("tpot", "p99", *_TPOT),
    _make_rate("input_throughput", "Input", "input throughput", "tok/s",
          "Input tokens / time during which at least one request was waiting for its first token; "
          "for a batch this is the prefill."),
    _make_rate("overall_throughput", "Overall", "overall throughput", "tok/s",
          "Input and output tokens of all requests / makespan."),
    _make_rate("request_throughput", "Requests", "request throughput", "req/s",
          "Requests / makespan."),
    _make_rate("offered_rate", "Offered", "offered request rate", "req/s",
          "In open loop: requests on the schedule, less one, / time from the first planned send "
          "to the last."),
    _make_rate("achieved_rate", "Achieved", "achieved request rate", "req/s",
          "In open loop: the same requests, less one, / time from the first end to the last; "
          "less than offered: the server fell behind."),
    _make_rate("goodput", "Goodput", "goodput", "req/s",
          "Achieved rate (in a closed loop request throughput) × share of the requests that met "
          "the study's objectives "
          "themselves; of several limits on one time the loosest counts."),
    Metric("itl_p99", "ITL p99", "inter-token latency, 99th percentile", "s",
           higher_is_better=False,
           meaning="99th percentile of the gaps between successive chunks of a stream, all "
           "requests pooled; a chunk may carry several tokens.",
           time="itl", statistic="p99", needs=NEEDED_FOR_GAPS),
    _make_metric("peak_bytes", "Memory peak", "peak memory", "bytes",
           "Largest resident memory of the engine's processes since they started (other workloads "
           "included): "
           "the sum of each process's own high-water mark, so an upper bound; one value per start.",
           source=FigureSource.MEMORY),
    _make_metric("resident_bytes", "Memory resident", "resident memory", "bytes",
           "Proportional set size of the engine's processes at the end of a trial.",
           source=FigureSource.MEMORY),
    _make_metric("device_peak_bytes", "Device peak", "peak device memory", "bytes",
           "Most memory that the engine's processes were seen to hold on all devices since they "
           "started (other "
           "workloads included); one value per start.", source=FigureSource.MEMORY),
    _make_metric("device_bytes", "Device memory", "device memory", "bytes",
           "Memory that the engine's processes hold on all devices at the end of a trial.",
           source=FigureSource.MEMORY),
    _make_metric("energy_per_token", "Energy", "energy per output token", "J/tok",
           "Energy that all GPUs which the engine sees took while the trial ran / output tokens "
           "of all requests; what "
           "the rest of the machine took is not in it.", source=FigureSource.COUNTERS),
    _make_metric("perplexity", "Perplexity", "perplexity", "",
           "exp of the mean negative log-probability of the tokens that stand in the text, each "
           "after those "
           "before it in its window; the first of a window is not scored.",
           source=FigureSource.SCORES),
    _make_metric("perplexity_rise", "Rise", "rise of perplexity", "%",
           "Perplexity over the baseline's on the same tokens, less 1.",
           source=FigureSource.SCORES),
    _make_metric("kl_mean", "KL mean", "mean KL divergence", "nats",
           "KL divergence of the baseline's next-token distribution from this one's, mean over "
           "tokens; from the top tokens, with all others as one event: a lower bound. Its "
           "interval ends at what the others may add.",
           source=FigureSource.SCORES),
    _make_metric("kl_mass", "Mass", "covered probability mass", "%",
           "Share of the baseline's probability on tokens whose probability both sides told, mean "
           "over places.",
           source=FigureSource.SCORES, higher_is_better=True),
    _make_metric("kl_median", "KL median", "median KL divergence", "nats",
           "The same divergence at the token that half do not exceed.", source=FigureSource.SCORES),
    _make_metric("kl_p99_9", "KL p99.9", "99.9th percentile of the KL divergence", "nats",
           "The same divergence at the token that 999 of 1,000 do not exceed.",
           source=FigureSource.SCORES),
    _make_metric("probability_change_rms", "RMS Δp", "RMS change of probability", "%",
           "Root mean square of how much the probability of the text's token differs from the "
           "baseline's.",
           source=FigureSource.SCORES),
    _make_metric("top1_agreement", "Same top token", "top-1 agreement", "%",
           "Share of places at which the likeliest token is the baseline's.",
           source=FigureSource.SCORES, higher_is_better=True),
)
# fmt: on


def _iter_further_statistics() -> Iterator[Metric]:
    """Yield the metrics that a service can promise and that are not recorded."""
    recorded = {(metric.time, metric.statistic) for metric in _RECORDED}
    for time, words in (("latency", _LATENCY), ("ttft", _TTFT), ("tpot", _TPOT)):
        for statistic in STATISTICS:
            if (time, statistic) not in recorded:
                yield _make_time(time, statistic, *words, is_recorded=False)


def _iter_objectives() -> Iterator[Metric]:
    """Yield the metrics that a service can promise, by time and then by statistic."""
    by_statistic = {(metric.time, metric.statistic): metric for metric in METRICS.values()}
    for time in PROMISED:
        for statistic in STATISTICS:
            yield by_statistic[time, statistic]


def _collect_spellings() -> dict[str, Metric]:
    """Return the metrics by every name that is accepted. A metric's own name comes first."""
    spellings: dict[str, Metric] = {}
    for metric in METRICS.values():
        if metric.statistic == "mean":
            spellings[f"{metric.name}_mean"] = metric
    for metric in METRICS.values():
        spellings[metric.column] = metric
    return spellings | METRICS


METRICS: dict[str, Metric] = {
    metric.name: metric for metric in (*_RECORDED, *_iter_further_statistics())
}
OBJECTIVES = {metric.name: metric for metric in _iter_objectives()}
_SPELLINGS = _collect_spellings()


def find_metric(name: str) -> Metric | None:
    """Return the metric with this name in any spelling, or None."""
    return _SPELLINGS.get(name)

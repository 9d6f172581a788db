"""One workload: its shape in a sentence, and its tables."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import PointSummary, Ranking, RankingEntry, StudySummary
from bitbench.reports.document.model import (
    Block,
    Details,
    Mark,
    Name,
    Paragraph,
    Phrase,
    Section,
    Table,
)
from bitbench.reports.document.numbers import (
    estimated,
    mean_quantity,
    percent,
    quantity_unit,
    starts_and_trials,
)
from bitbench.reports.document.words import (
    MAX_NAME,
    ColumnOf,
    Words,
    joined,
    number_column,
    paragraph,
    plural,
    ratio_column,
    say,
    table,
    words_column,
)
from bitbench.reports.labels import Labels
from bitbench.reports.sections import ranked
from bitbench.study.plan import Config
from bitbench.study.workload import (
    AnyArrival,
    Api,
    Arrival,
    Constant,
    Poisson,
    ShapePart,
    Trace,
    Workload,
    workload_length_text,
)
from bitbench.util.units import UNKNOWN, show_seconds


def workload_shape(workload: Workload) -> Phrase:
    """`Concurrency 8, input 256 tokens, output 128 tokens, all at once, 8 requests per trial.`"""
    most = "up to " if workload.text is not None or isinstance(workload.arrival, Trace) else ""
    most_out = most if isinstance(workload.arrival, Trace) else ""
    what = "request" if workload.turns == 1 else "conversation"

    def known(part: ShapePart, value: str) -> str:
        return UNKNOWN if part in workload.unknown else value

    parts: list[Words] = [
        *(
            []
            if workload.open_loop
            else [f"concurrency {known('concurrency', f'{workload.concurrency:,}')}"]
        ),
        f"input {known('input_tokens', most + workload_length_text(workload.input_tokens))} tokens",
        f"output {known('output_tokens', most_out + workload_length_text(workload.output_tokens))} tokens",
        *_prompts(workload),
        f"arrival {UNKNOWN}" if "arrival" in workload.unknown else _arrival(workload.arrival, what),
        f"{_amount(workload)} per trial",
    ]
    first = parts[0]
    assert isinstance(first, str)  # a number of streams, or of tokens
    return say(joined([first.capitalize(), *parts[1:]], ", "), ".")


def _arrival(arrival: AnyArrival, what: str) -> Words:
    match arrival:
        case Constant():
            return f"one {what} each {show_seconds(1 / arrival.rate)}"
        case Poisson():
            return f"Poisson arrivals at {arrival.rate:,g} {what}s/s"
        case Trace():
            speed = "" if arrival.speed == 1 else f" at {arrival.speed:g} times its speed"
            return say("arrivals of the trace ", Name(arrival.file), speed)
        case _:
            return "all at once" if arrival.kind is Arrival.BATCH else "closed loop"


def _amount(workload: Workload) -> str:
    if "requests" in workload.unknown:
        return f"{UNKNOWN} requests"
    count = workload.request_count
    return show_seconds(workload.duration) if count is None else plural(count, "request")


def _prompts(workload: Workload) -> list[Words]:
    parts: list[Words] = []
    if workload.text is not None:
        parts.append(say("texts from ", Name(workload.text.file)))
    if workload.api is Api.CHAT:
        parts.append("through the chat endpoint")
    if (shared := workload.shared_prefix) is not None:
        parts.append(
            f"{percent(shared.share)} of the prompts with one prefix of {shared.tokens:,} tokens"
        )
    if (talk := workload.conversation) is not None:
        think = f" with {show_seconds(talk.think)} of thinking between them" if talk.think else ""
        parts.append(f"conversations of {talk.turns} turns{think}")
    return parts


MAIN_METRICS = ("output_throughput", "latency_s", "ttft_s", "tpot_s")
MORE_METRICS = (
    "input_throughput", "overall_throughput", "request_throughput", "ttft_p99_s", "tpot_p99_s", "itl_p99_s",
    "peak_bytes", "resident_bytes",
)  # fmt: skip
# Of an open loop, of models that reason and of GPUs: a column only where there is a figure for it.
OCCASIONAL_METRICS = (
    *("offered_rate", "achieved_rate", "goodput", "ttft_p50_s", "first_answer_s"),
    "energy_per_token",
)
WIDE = 110  # columns of a terminal from which all main figures fit beside a config's name


def workload_section(summary: StudySummary, ranking: Ranking) -> Section:
    points, labels = ranked.ranked_points(summary, ranking), Labels.of(summary, MAX_NAME)
    main = _main_table(summary, ranking, points, labels)
    more: list[Block] = []
    if with_result := [point for point in points if ranked.has_ranked_result(summary, point)]:
        occasional = [
            metric
            for metric in OCCASIONAL_METRICS
            if any(metric in point.metrics for point in points)
        ]
        metrics = dict.fromkeys(
            (*occasional, *MORE_METRICS, *ranked.ranked_device_metrics(summary))
        )
        further = table(
            with_result,
            words_column("Config", lambda point: Name(labels[point.point.config])),
            *(ranked.ranked_metric_column(summary, metric) for metric in metrics),
        )
        more += [paragraph("Further metrics, in the same order:"), further]
    return Section(
        ranked.ranked_section_title(say("Workload ", Name(ranking.workload)), summary),
        (
            Paragraph(workload_shape(summary.study.workload(ranking.workload))),
            main if main.rows else paragraph("Refused for every config, see below."),
            *([Details(f"More on workload {ranking.workload}", tuple(more))] if more else []),
        ),
        in_terminal=True,
    )


@dataclass(frozen=True)
class _Row:
    config: Config
    words: str  # how many trials there are, or why there are none
    point: PointSummary | None = None  # None: refused
    entry: RankingEntry | None = None

    def metric(self, name: str) -> Estimate | None:
        return self.point.metrics.get(name) if self.point else None


def _rows(
    summary: StudySummary, ranking: Ranking, points: Sequence[PointSummary]
) -> Iterator[_Row]:
    """Best first; then what was refused here although its config was tried elsewhere."""
    for point in points:
        words = ranked.ranked_point_outcomes(point) or "not run"
        if ranked.has_ranked_result(summary, point):
            words = starts_and_trials(point.metrics[summary.primary_metric])
        yield _Row(
            point.point.config, words, point, ranked.ranked_entry(ranking, point.point.config)
        )
    tried = {
        point.point.config for point in summary.points
    }  # what no workload tries is listed once, after the tables
    for refusal in summary.refusals:
        if refusal.point.workload == ranking.workload and (
            refusal.point.config in tried or refusal.was_tried
        ):
            yield _Row(refusal.point.config, "not made" if refusal.was_tried else "refused")


def _main_table(
    summary: StudySummary, ranking: Ranking, points: Sequence[PointSummary], labels: Labels
) -> Table:
    memory = ranked.ranked_memory_metric(summary)
    definition = summary.definitions[memory]

    def column(metric: str) -> ColumnOf[_Row]:
        shown, shown_from = summary.definitions[metric], 0 if metric == ranking.metric else WIDE
        return number_column(
            shown.label,
            quantity_unit(shown),
            lambda row: estimated(row.metric(metric), shown),
            shown_from=shown_from,
        )

    return table(
        _rows(summary, ranking, points),
        words_column("Config", lambda row: Name(labels[row.config])),
        words_column("Rank", lambda row: ranked.rank_text(row.entry)),
        ratio_column("vs. baseline", lambda row: ranked.ranked_versus_baseline(ranking, row.entry)),
        *map(column, dict.fromkeys((ranking.metric, *MAIN_METRICS))),
        number_column(
            definition.label,
            quantity_unit(definition),
            lambda row: mean_quantity(row.metric(memory), definition),
        ),
        words_column("Starts / trials", lambda row: row.words),
        mark=lambda row: Mark.BEST if row.entry and row.entry.rank_low == 1 else None,
    )

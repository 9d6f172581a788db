"""A workload: its shape in a sentence, and its tables."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

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
    find_unit,
    format_percent,
    format_starts_and_trials,
    make_mean_quantity,
    to_quantity,
)
from bitbench.reports.document.words import (
    MAX_NAME,
    ColumnOf,
    Words,
    build_table,
    format_count,
    join_phrases,
    make_number_column,
    make_ratio_column,
    make_words_column,
    mark_if,
    paragraph,
    say,
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
    format_length,
)
from bitbench.util.units import UNKNOWN, show_seconds


def describe_workload(workload: Workload) -> Phrase:
    """Return `Concurrency 8, input 256 tokens, output 128 tokens, 8 requests per trial.`"""
    is_trace = isinstance(workload.arrival, Trace)
    input_length = format_length(workload.input_tokens)
    output_length = format_length(workload.output_tokens)
    if is_trace or workload.text is not None:
        input_length = f"up to {input_length}"
    if is_trace:
        output_length = f"up to {output_length}"
    unit = "request" if workload.turns == 1 else "conversation"

    def format_value(part: ShapePart, value: str) -> str:
        return UNKNOWN if part in workload.unknown else value

    parts: list[Words] = [
        f"input {format_value('input_tokens', input_length)} tokens",
        f"output {format_value('output_tokens', output_length)} tokens",
    ]
    if not workload.open_loop:
        parts.insert(0, f"concurrency {format_value('concurrency', f'{workload.concurrency:,}')}")
    parts += _list_prompt_parts(workload)
    if "arrival" in workload.unknown:
        parts.append(f"arrival {UNKNOWN}")
    else:
        parts.append(_describe_arrival(workload.arrival, unit))
    parts.append(f"{_format_amount(workload)} per trial")
    first = parts[0]
    assert isinstance(first, str)  # concurrency, or tokens
    return say(join_phrases([first.capitalize(), *parts[1:]], ", "), ".")


def _describe_arrival(arrival: AnyArrival, what: str) -> Words:
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


def _format_amount(workload: Workload) -> str:
    if "requests" in workload.unknown:
        return f"{UNKNOWN} requests"
    count = workload.request_count
    return show_seconds(workload.duration) if count is None else format_count(count, "request")


def _list_prompt_parts(workload: Workload) -> list[Words]:
    parts: list[Words] = []
    if workload.text is not None:
        parts.append(say("texts from ", Name(workload.text.file)))
    if workload.api is Api.CHAT:
        parts.append("through the chat endpoint")
    prefix = workload.shared_prefix
    if prefix is not None:
        length = f"one prefix of {prefix.tokens:,} tokens"
        parts.append(f"{format_percent(prefix.share)} of the prompts with {length}")
    talk = workload.conversation
    if talk is not None:
        pause = f" with {show_seconds(talk.think)} of thinking between them" if talk.think else ""
        parts.append(f"conversations of {talk.turns} turns{pause}")
    return parts


MAIN_METRICS = ("output_throughput", "latency_s", "ttft_s", "tpot_s")
MORE_METRICS = (
    *("input_throughput", "overall_throughput", "request_throughput"),
    *("ttft_p99_s", "tpot_p99_s", "itl_p99_s"),
    *("peak_bytes", "resident_bytes"),
)
# Metrics of open loops, of models that reason and of GPUs: shown only if a point has them.
OCCASIONAL_METRICS = (
    *("offered_rate", "achieved_rate", "goodput", "ttft_p50_s", "first_answer_s"),
    "energy_per_token",
)
WIDE = 110  # columns of a terminal from which all main metrics fit next to a config's name


def build_workload_section(summary: StudySummary, ranking: Ranking) -> Section:
    """Return the shape of a workload, its main metrics, and further metrics folded away."""
    points = ranked.list_ranked_points(summary, ranking)
    labels = Labels.of(summary, MAX_NAME)
    shape = describe_workload(summary.study.workload(ranking.workload))
    main = _build_main_table(summary, ranking, points, labels)
    blocks: list[Block] = [Paragraph(shape)]
    if main.rows:
        blocks.append(main)
    else:
        blocks.append(paragraph("Refused for every config, see below."))
    with_result = [point for point in points if ranked.has_ranked_result(summary, point)]
    if with_result:
        measured = {metric for point in points for metric in point.metrics}
        occasional = [metric for metric in OCCASIONAL_METRICS if metric in measured]
        metrics = (*occasional, *MORE_METRICS, *ranked.list_device_metrics(summary))
        further = build_table(
            with_result,
            make_words_column("Config", lambda point: Name(labels[point.point.config])),
            *map(partial(ranked.make_metric_column, summary), dict.fromkeys(metrics)),
        )
        about = paragraph("Further metrics, in the same order:")
        blocks.append(Details(f"More on workload {ranking.workload}", (about, further)))
    title = ranked.format_section_title(say("Workload ", Name(ranking.workload)), summary)
    return Section(title, tuple(blocks), in_terminal=True)


@dataclass(frozen=True)
class _Row:
    """A config on a workload, measured or refused."""

    config: Config
    words: str  # the counts of starts and trials, or why there are none
    point: PointSummary | None = None  # None: refused
    entry: RankingEntry | None = None

    @property
    def is_best(self) -> bool:
        return self.entry is not None and self.entry.rank_low == 1

    def metric(self, name: str) -> Estimate | None:
        return self.point.metrics.get(name) if self.point else None


def _iter_rows(
    summary: StudySummary, ranking: Ranking, points: Sequence[PointSummary]
) -> Iterator[_Row]:
    """Yield the points, best first, then the refusals of configs that other workloads tried."""
    for point in points:
        config = point.point.config
        words = ranked.format_outcomes(point) or "not run"
        if ranked.has_ranked_result(summary, point):
            words = format_starts_and_trials(point.metrics[summary.primary_metric])
        yield _Row(config, words, point, ranked.find_ranked_entry(ranking, config))
    # A config that no workload tried is listed once, after the tables.
    tried = {point.point.config for point in summary.points}
    for refusal in summary.refusals:
        if refusal.point.workload != ranking.workload:
            continue
        if refusal.was_tried:
            yield _Row(refusal.point.config, "not made")
        elif refusal.point.config in tried:
            yield _Row(refusal.point.config, "refused")


def _build_main_table(
    summary: StudySummary, ranking: Ranking, points: Sequence[PointSummary], labels: Labels
) -> Table:
    """Return a row per config with its rank, its ratio, the main metrics and the memory."""
    memory = ranked.find_memory_metric(summary)
    memory_definition = summary.definitions[memory]

    def make_column(metric: str) -> ColumnOf[_Row]:
        definition = summary.definitions[metric]
        shown_from = 0 if metric == ranking.metric else WIDE
        return make_number_column(
            definition.label,
            find_unit(definition),
            lambda row: to_quantity(row.metric(metric), definition),
            shown_from=shown_from,
        )

    return build_table(
        _iter_rows(summary, ranking, points),
        make_words_column("Config", lambda row: Name(labels[row.config])),
        make_words_column("Rank", lambda row: ranked.format_rank(row.entry)),
        make_ratio_column(
            "vs. baseline", lambda row: ranked.format_versus_baseline(ranking, row.entry)
        ),
        *map(make_column, dict.fromkeys((ranking.metric, *MAIN_METRICS))),
        make_number_column(
            memory_definition.label,
            find_unit(memory_definition),
            lambda row: make_mean_quantity(row.metric(memory), memory_definition),
        ),
        make_words_column("Starts / trials", lambda row: row.words),
        mark=lambda row: mark_if(row.is_best, Mark.BEST),
    )

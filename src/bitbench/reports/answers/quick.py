"""The results of `bitbench quick`: the load a server handles, or the speed of variants."""

from collections.abc import Iterator, Sequence
from math import ceil, floor, log10
from pathlib import Path

from bitbench.analysis.results.summary import PointSummary, StudySummary
from bitbench.records.trial import NOT_THE_ENGINES, Outcome
from bitbench.reports.document.model import (
    Block,
    CodeBlock,
    Document,
    Name,
    Paragraph,
    Phrase,
    Table,
    Unit,
)
from bitbench.reports.document.numbers import make_number
from bitbench.reports.document.words import (
    MAX_NAME,
    build_table,
    bullets,
    format_count,
    make_number_column,
    paragraph,
    say,
    strong,
)
from bitbench.reports.labels import Labels
from bitbench.reports.sections.failures import iter_cache_remarks, iter_remarks, iter_stream_remarks
from bitbench.reports.sections.lead import collect_answer_marks, find_lead
from bitbench.reports.sections.quality import (
    iter_rounding_sentences,
    iter_undecided_quality,
)
from bitbench.reports.sections.ranked import build_results_table
from bitbench.study.workload import format_length
from bitbench.util.units import format_exact_seconds

SLO_FACTOR = 2  # times the median TTFT: a limit that a server can meet under load
OUTPUT = "output_throughput"
TTFT = "ttft_p50_s"


def build_quick_server_report(
    summary: StudySummary, url: str, growth: float, folder: Path
) -> Document:
    """Return a report on how much load a server handles. Its values are means over trials.

    More streams count as a gain if they raise the throughput by the factor `growth` at least.
    `folder` is the study folder. It contains the prompts if the server takes no token ids.
    """
    shape = summary.study.workloads[0]
    output_tokens = format_length(shape.output_tokens)
    requests = f"{format_length(shape.input_tokens)} tokens in, {output_tokens} out"
    target = url
    if shape.text:
        requests = f"short questions, at most {output_tokens} tokens out"
        target = f"{url} --api chat --no-ignore-eos --text {folder / shape.text.file}"
    points = sorted(summary.points, key=lambda point: _count_streams(summary, point))
    sentences = [
        *_iter_failures(summary, points),
        *iter_cache_remarks(summary),
        *iter_stream_remarks(summary),
    ]
    answer: list[Block] = [*bullets(sentences)]
    measured = [point for point in points if OUTPUT in point.metrics and TTFT in point.metrics]
    if measured:
        answer.append(_build_load_table(summary, measured))
        answer += _iter_peak(summary, measured, target, growth, _find_refused(summary, points))
    title = say(Name(summary.study.engines[0].name), f" at {url}: {requests}")
    return Document(title, tuple(answer))


def _build_load_table(summary: StudySummary, points: Sequence[PointSummary]) -> Table:
    return build_table(
        points,
        make_number_column("Streams", Unit.COUNT, lambda point: _count_streams(summary, point)),
        make_number_column("Output", "tok/s", lambda point: point.metrics[OUTPUT].value),
        make_number_column("TTFT p50", Unit.SECONDS, lambda point: point.metrics[TTFT].value),
    )


def _iter_peak(
    summary: StudySummary,
    points: Sequence[PointSummary],
    target: str,
    growth: float,
    refused: PointSummary | None,
) -> Iterator[Block]:
    """Yield the load at which throughput stops growing, a stream's speed there, and a next command.

    `target` is the URL with the options it needs. `refused` is the lowest load at which the server
    failed.
    """
    most = max(point.metrics[OUTPUT].value for point in points)
    knee = next(point for point in points if point.metrics[OUTPUT].value * growth >= most)
    streams = format_count(_count_streams(summary, knee), "stream")
    verdict = say(make_number(knee.metrics[OUTPUT].value, "tok/s"), f" with {streams}")
    if knee != points[-1]:
        verdict = say(verdict, f"; more streams add less than {growth - 1:.0%}".replace("%", " %"))
    elif refused is not None:
        is_overloaded = refused.failures[0].failure.outcome is Outcome.OVERLOADED
        verb = "are refused" if is_overloaded else "fail"
        verdict = say(
            verdict, f"; {format_count(_count_streams(summary, refused), 'stream')} {verb}"
        )
    elif len(points) > 1:
        verdict = say(verdict, ", and still rising")
    text = say(strong(verdict, "."), " ", _describe_stream(summary, points[0]), " ")
    if knee != points[0]:
        text = say(text, _describe_stream(summary, knee), " ")
    yield Paragraph(text)
    limit_s = _round_up(SLO_FACTOR * knee.metrics[TTFT].value)
    yield paragraph("Next, the highest rate that meets a limit on the first token:")
    yield CodeBlock((f"bitbench load {target} --slo ttft_p99={format_exact_seconds(limit_s)}",))


def _describe_stream(summary: StudySummary, point: PointSummary) -> Phrase:
    """Return the speed of a stream: `8 streams: 80.9 tok/s each, TTFT 301 ms.`"""
    streams = _count_streams(summary, point)
    pace = make_number(point.metrics[OUTPUT].value / streams, "tok/s")
    each = " each" if streams > 1 else ""
    return say(
        f"{format_count(streams, 'stream')}: ",
        pace,
        f"{each}, TTFT ",
        make_number(point.metrics[TTFT].value, Unit.SECONDS),
        ".",
    )


def _count_streams(summary: StudySummary, point: PointSummary) -> int:
    return summary.study.workload(point.point.workload).concurrency


def _iter_failures(summary: StudySummary, points: Sequence[PointSummary]) -> Iterator[Phrase]:
    for point in points:
        if OUTPUT not in point.metrics:
            why = point.failures[0].failure.cause if point.failures else "no trial counts"
            streams = format_count(_count_streams(summary, point), "stream")
            yield say(strong(streams), f": no result ({why}).")


def _find_refused(summary: StudySummary, points: Sequence[PointSummary]) -> PointSummary | None:
    """Return the lowest load at which the server itself failed, or None if it served every load."""
    refused = []
    for point in points:
        if OUTPUT in point.metrics or not point.failures:
            continue
        if point.failures[0].failure.outcome not in NOT_THE_ENGINES:
            refused.append(point)
    return min(refused, key=lambda point: _count_streams(summary, point), default=None)


def _round_up(seconds: float) -> float:
    """Round up to one digit, as a person would set a limit."""
    digit = 10.0 ** floor(log10(seconds)) if seconds > 0 else 1.0
    return float(f"{ceil(seconds / digit) * digit:.1g}")


def build_quick_comparison(summary: StudySummary) -> Document:
    """Return the answer in sentences, then a table of configs and the baseline."""
    answer = find_lead(summary)
    labels = Labels.of(summary, MAX_NAME).marked(collect_answer_marks(summary, answer))
    blocks: list[Block] = []
    if answer:
        blocks.append(paragraph(answer.phrase))
    if any(row.is_known for row in summary.quality):
        blocks += map(Paragraph, iter_rounding_sentences(summary.rounded_before))
        blocks += map(Paragraph, iter_undecided_quality(summary))
    blocks += [build_results_table(summary, labels), *bullets(iter_remarks(summary))]
    return Document(say(labels.shared or summary.study.name), tuple(blocks))

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
from bitbench.reports.document.numbers import number
from bitbench.reports.document.words import (
    MAX_NAME,
    bullets,
    number_column,
    paragraph,
    plural,
    say,
    strong,
    table,
)
from bitbench.reports.labels import Labels
from bitbench.reports.sections.failures import cached_remarks, remarks, stream_remarks
from bitbench.reports.sections.lead import answer_marks, lead
from bitbench.reports.sections.quality import (
    quality_rounding_sentences,
    undecided_quality_sentences,
)
from bitbench.reports.sections.ranked import results_table
from bitbench.study.workload import workload_length_text
from bitbench.util.units import written_seconds

SLO_FACTOR = 2  # times the median TTFT: a limit that a server can meet under load
OUTPUT = "output_throughput"
TTFT = "ttft_p50_s"


def quick_server_document(summary: StudySummary, url: str, growth: float, folder: Path) -> Document:
    """Return how much a server handles, with means over trials.

    `growth` is the ratio by which more streams must raise the throughput to count. `folder` is
    the study's: it has the texts for a server that takes no token ids.
    """
    shape = summary.study.workloads[0]
    output_tokens = workload_length_text(shape.output_tokens)
    requests = f"{workload_length_text(shape.input_tokens)} tokens in, {output_tokens} out"
    target = url
    if shape.text:
        requests = f"short questions, at most {output_tokens} tokens out"
        target = f"{url} --api chat --no-ignore-eos --text {folder / shape.text.file}"
    points = sorted(summary.points, key=lambda point: _streams(summary, point))
    sentences = [*_failed(summary, points), *cached_remarks(summary), *stream_remarks(summary)]
    answer: list[Block] = [*bullets(sentences)]
    measured = [point for point in points if OUTPUT in point.metrics and TTFT in point.metrics]
    if measured:
        answer.append(_load_table(summary, measured))
        answer += _reached(summary, measured, target, growth, _refused(summary, points))
    title = say(Name(summary.study.engines[0].name), f" at {url}: {requests}")
    return Document(title, tuple(answer))


def _load_table(summary: StudySummary, points: Sequence[PointSummary]) -> Table:
    return table(
        points,
        number_column("Streams", Unit.COUNT, lambda point: _streams(summary, point)),
        number_column("Output", "tok/s", lambda point: point.metrics[OUTPUT].value),
        number_column("TTFT p50", Unit.SECONDS, lambda point: point.metrics[TTFT].value),
    )


def _reached(
    summary: StudySummary,
    points: Sequence[PointSummary],
    target: str,
    growth: float,
    refused: PointSummary | None,
) -> Iterator[Block]:
    """Yield where the throughput stops growing, what a stream gets there, and the next command.

    `target` is the URL with the options it needs. `refused` is the lowest load at which the server
    failed.
    """
    most = max(point.metrics[OUTPUT].value for point in points)
    knee = next(point for point in points if point.metrics[OUTPUT].value * growth >= most)
    streams = plural(_streams(summary, knee), "stream")
    verdict = say(number(knee.metrics[OUTPUT].value, "tok/s"), f" with {streams}")
    if knee != points[-1]:
        verdict = say(verdict, f"; more streams add less than {growth - 1:.0%}".replace("%", " %"))
    elif refused is not None:
        is_overloaded = refused.failures[0].failure.outcome is Outcome.OVERLOADED
        verb = "are refused" if is_overloaded else "fail"
        verdict = say(verdict, f"; {plural(_streams(summary, refused), 'stream')} {verb}")
    elif len(points) > 1:
        verdict = say(verdict, ", and still rising")
    text = say(strong(verdict, "."), " ", _of_a_stream(summary, points[0]), " ")
    if knee != points[0]:
        text = say(text, _of_a_stream(summary, knee), " ")
    yield Paragraph(text)
    limit_s = _rounded_up(SLO_FACTOR * knee.metrics[TTFT].value)
    yield paragraph("Next, the highest rate that meets a limit on the first token:")
    yield CodeBlock((f"bitbench load {target} --slo ttft_p99={written_seconds(limit_s)}",))


def _of_a_stream(summary: StudySummary, point: PointSummary) -> Phrase:
    """Return the speed of a stream: `8 streams: 80.9 tok/s each, TTFT 301 ms.`"""
    streams = _streams(summary, point)
    pace = number(point.metrics[OUTPUT].value / streams, "tok/s")
    each = " each" if streams > 1 else ""
    return say(
        f"{plural(streams, 'stream')}: ",
        pace,
        f"{each}, TTFT ",
        number(point.metrics[TTFT].value, Unit.SECONDS),
        ".",
    )


def _streams(summary: StudySummary, point: PointSummary) -> int:
    return summary.study.workload(point.point.workload).concurrency


def _failed(summary: StudySummary, points: Sequence[PointSummary]) -> Iterator[Phrase]:
    for point in points:
        if OUTPUT not in point.metrics:
            why = point.failures[0].failure.cause if point.failures else "no trial counts"
            streams = plural(_streams(summary, point), "stream")
            yield say(strong(streams), f": no result ({why}).")


def _refused(summary: StudySummary, points: Sequence[PointSummary]) -> PointSummary | None:
    """Return the lowest load at which the server itself failed, or None if it served every load."""
    refused = []
    for point in points:
        if OUTPUT in point.metrics or not point.failures:
            continue
        if point.failures[0].failure.outcome not in NOT_THE_ENGINES:
            refused.append(point)
    return min(refused, key=lambda point: _streams(summary, point), default=None)


def _rounded_up(seconds: float) -> float:
    """Round up to one digit, as a person would set a limit."""
    digit = 10.0 ** floor(log10(seconds)) if seconds > 0 else 1.0
    return float(f"{ceil(seconds / digit) * digit:.1g}")


def quick_comparison_document(summary: StudySummary) -> Document:
    """Return the answer in sentences, then a table of configs and the baseline."""
    answer = lead(summary)
    labels = Labels.of(summary, MAX_NAME).marked(answer_marks(summary, answer))
    blocks: list[Block] = []
    if answer:
        blocks.append(paragraph(answer.phrase))
    if any(row.is_known for row in summary.quality):
        blocks += map(Paragraph, quality_rounding_sentences(summary.rounded_before))
        blocks += map(Paragraph, undecided_quality_sentences(summary))
    blocks += [results_table(summary, labels), *bullets(remarks(summary))]
    return Document(say(labels.shared or summary.study.name), tuple(blocks))

"""`bitbench quick` in a few lines: how much a server carries; which variant is faster, and what that loses."""

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

SLO_FACTOR = 2  # of the first token's median: a limit that a server can meet under load
OUTPUT, TTFT = "output_throughput", "ttft_p50_s"


def quick_server_document(summary: StudySummary, url: str, growth: float, folder: Path) -> Document:
    """Means over trials. `growth`: what more streams must bring, as a ratio, to count as more. `folder`: of the study,
    with the texts that a server was asked which takes no token ids."""
    shape, server = summary.study.workloads[0], summary.study.engines[0]
    answered = workload_length_text(shape.output_tokens)
    asked, target = f"{workload_length_text(shape.input_tokens)} tokens in, {answered} out", url
    if shape.text:
        asked = f"short questions, at most {answered} tokens out"
        target = f"{url} --api chat --no-ignore-eos --text {folder / shape.text.file}"
    points = sorted(summary.points, key=lambda point: _streams(summary, point))
    known = [point for point in points if OUTPUT in point.metrics and TTFT in point.metrics]
    return Document(
        say(Name(server.name), f" at {url}: {asked}"),
        (
            *bullets(
                [*_failed(summary, points), *cached_remarks(summary), *stream_remarks(summary)]
            ),
            *([_load_table(summary, known)] if known else []),
            *(_reached(summary, known, target, growth, _refused(summary, points)) if known else ()),
        ),
    )


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
    """Where throughput ends to grow, and what one stream gets there. `target`: the URL, with what it must be sent.
    `refused`: the first load that the server turned away."""
    most = max(point.metrics[OUTPUT].value for point in points)
    knee = next(point for point in points if point.metrics[OUTPUT].value * growth >= most)
    streams = plural(_streams(summary, knee), "stream")
    verdict = say(number(knee.metrics[OUTPUT].value, "tok/s"), f" with {streams}")
    if knee != points[-1]:
        verdict = say(verdict, f"; more streams add less than {growth - 1:.0%}".replace("%", " %"))
    elif refused is not None:
        how = "are refused" if refused.failures[0].failure.outcome is Outcome.OVERLOADED else "fail"
        verdict = say(verdict, f"; {plural(_streams(summary, refused), 'stream')} {how}")
    elif len(points) > 1:
        verdict = say(verdict, ", and still rising")
    ends = [points[0]] if knee == points[0] else [points[0], knee]
    yield paragraph(
        strong(verdict, "."),
        " ",
        *(word for point in ends for word in (_of_a_stream(summary, point), " ")),
    )
    limit_s = _rounded_up(SLO_FACTOR * knee.metrics[TTFT].value)
    yield paragraph("Next, the highest rate that meets a limit on the first token:")
    yield CodeBlock((f"bitbench load {target} --slo ttft_p99={written_seconds(limit_s)}",))


def _of_a_stream(summary: StudySummary, point: PointSummary) -> Phrase:
    """`8 streams: 80.9 tok/s each, TTFT 301 ms.`"""
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
            yield say(strong(plural(_streams(summary, point), "stream")), f": no result ({why}).")


def _refused(summary: StudySummary, points: Sequence[PointSummary]) -> PointSummary | None:
    """Return the lowest load at which the server itself failed; None where it served each."""
    failed = [point for point in points if OUTPUT not in point.metrics and point.failures]
    refused = [
        point for point in failed if point.failures[0].failure.outcome not in NOT_THE_ENGINES
    ]
    return min(refused, key=lambda point: _streams(summary, point), default=None)


def _rounded_up(seconds: float) -> float:
    """To one digit: a limit as a person would set it."""
    digit = 10.0 ** floor(log10(seconds)) if seconds > 0 else 1.0
    return float(f"{ceil(seconds / digit) * digit:.1g}")


def quick_comparison_document(summary: StudySummary) -> Document:
    """The answer in sentences, then each config beside the baseline."""
    found = lead(summary)
    labels = Labels.of(summary, MAX_NAME).marked(answer_marks(summary, found))
    answer = [paragraph(found.phrase)] if found else []
    if any(row.is_known for row in summary.quality):
        answer += map(Paragraph, quality_rounding_sentences(summary.rounded_before))
        answer += map(Paragraph, undecided_quality_sentences(summary))
    return Document(
        say(labels.shared or summary.study.name),
        (*answer, results_table(summary, labels), *bullets(remarks(summary))),
    )

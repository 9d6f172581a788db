"""Missing results and their causes.

Remarks come before any table. Failed trials are grouped by cause, and refused points by reason.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from bitbench.analysis.results.summary import PointSummary, StreamSummary, StudySummary
from bitbench.records.trial import NOT_THE_ENGINES, Failure, Outcome
from bitbench.reports.document.model import (
    Block,
    Bullets,
    CodeBlock,
    Details,
    Name,
    Phrase,
    Section,
    Unit,
)
from bitbench.reports.document.numbers import make_number, make_share
from bitbench.reports.document.words import (
    MAX_NAME,
    Words,
    build_table,
    bullets,
    format_count,
    format_names,
    format_plain_words,
    join_phrases,
    make_words_column,
    paragraph,
    say,
    small_print,
    strong,
)
from bitbench.reports.labels import Labels, group_by
from bitbench.reports.sections.lead import MAX_NAMED
from bitbench.reports.sections.ranked import has_ranked_result
from bitbench.study.plan import Config, Point, Refusal

_NUMBER = re.compile(r"\d[\d.,]*")


def group_failures(points: Iterable[Point]) -> list[tuple[list[Config], list[str]]]:
    """Group points that share a cause: each group of configs, with all the workloads it affects."""
    workloads: dict[Config, list[str]] = {}
    for point in points:
        workloads.setdefault(point.config, []).append(point.workload)
    groups = group_by(workloads, lambda config: tuple(workloads[config]))
    return [(configs, list(names)) for names, configs in groups.items()]


def _describe_affected(points: Iterable[Point], labels: Labels) -> Phrase:
    """Return the configs and workloads of points: `a and b on x and y; c on x`."""
    groups = []
    for configs, workloads in group_failures(points):
        groups.append(say(labels.format_configs(configs), " on ", format_names(workloads)))
    return join_phrases(groups, "; ")


def _find_kind(failure: Failure) -> str:
    """Return a text that is equal for failures of one cause.

    Failures caused by the machine differ only in their numbers. For an engine, a number such as an
    exit code may be all that distinguishes two causes.
    """
    if failure.outcome in NOT_THE_ENGINES:
        return _NUMBER.sub("#", failure.cause)
    return failure.cause


def group_refusals(refusals: Iterable[Refusal]) -> dict[str, list[Point]]:
    """Return the refused points of each reason."""
    points: dict[str, list[Point]] = {}
    for refusal in refusals:
        points.setdefault(refusal.reason, []).append(refusal.point)
    return points


MAX_LOG_LINES = 12
MAX_IDS = 8
MAX_CAUSE = 200  # characters: a line or two of a terminal; the log lines have the whole text


def build_failures_section(summary: StudySummary) -> Section:
    """Return one bullet per cause, with its trials and log lines folded away."""
    labels = Labels.of(summary, MAX_NAME)
    blocks: list[Block] = [
        *_iter_failed_trials(summary, labels),
        *bullets(_iter_not_made(summary, labels)),
        *bullets(_iter_failed_quality(summary, labels)),
    ]
    content = blocks or [small_print("Nothing failed.")]
    return Section(say("What failed, and why"), tuple(content), in_terminal=bool(blocks))


def _iter_failed_trials(summary: StudySummary, labels: Labels) -> Iterator[Block]:
    """Yield the sentence and the evidence of each cause for which trials failed."""
    failed = [(point.point, group) for point in summary.points for group in point.failures]
    causes = group_by(failed, lambda pair: (pair[1].failure.outcome, _find_kind(pair[1].failure)))
    for pairs in causes.values():
        failure = pairs[0][1].failure  # the first stands for all of its kind
        points = []
        trials: list[str] = []
        for point, group in pairs:
            points.append(point)
            trials += group.ids
        count = f" ({format_count(len(trials), 'trial')})"
        outcome = failure.outcome.value
        yield Bullets(
            (_describe_failure(outcome, count, _describe_affected(points, labels), failure.cause),)
        )
        yield _build_evidence(failure, trials)


def _iter_not_made(summary: StudySummary, labels: Labels) -> Iterator[Phrase]:
    for reason, points in group_refusals(_list_attempts(summary)).items():
        yield _describe_failure("not made", "", _describe_affected(points, labels), reason)


def _iter_failed_quality(summary: StudySummary, labels: Labels) -> Iterator[Phrase]:
    for row in summary.quality:
        if row.outcome is not Outcome.OK:
            affected = say("quality of ", Name(labels[row.config]))
            yield _describe_failure(
                row.outcome.value, "", affected, row.cause or "no cause is known"
            )


def _describe_failure(outcome: str, count: str, affected: Phrase, cause: str) -> Phrase:
    return say(strong(outcome), count, ": ", affected, ": ", format_plain_words(cause, MAX_CAUSE))


def _build_evidence(failure: Failure, ids: Sequence[str]) -> Details:
    """Return the trials that failed, with the whole cause if it was cut, and the log lines."""
    whole = f": {failure.cause}" if len(failure.cause) > MAX_CAUSE else ""
    end = ":" if failure.log_lines else "."
    blocks: list[Block] = [paragraph("In ", format_names(ids, most=MAX_IDS), whole, end)]
    if failure.log_lines:
        blocks.append(CodeBlock(failure.log_lines[-MAX_LOG_LINES:]))
    return Details(f"Trials and log lines: {failure.outcome.value}", tuple(blocks))


def build_refusals_section(summary: StudySummary) -> Section | None:
    """Return a table of the points refused before any trial, or None if none exist.

    It has a row per reason, so that a reason that applies to many configs is read once.
    """
    refused = (refusal for refusal in summary.refusals if not refusal.was_tried)
    rows = []
    for reason, points in group_refusals(refused).items():
        for configs, workloads in group_failures(points):
            rows.append((reason, configs, workloads))
    if not rows:
        return None
    labels = Labels.of(summary, MAX_NAME)
    reasons = build_table(
        rows,
        make_words_column("Reason", lambda row: row[0]),
        make_words_column("Configs", lambda row: labels.format_configs(row[1])),
        make_words_column("Workloads", lambda row: format_names(row[2])),
    )
    return Section(say("Refused up front"), (reasons,), in_terminal=True)


WITHOUT_CACHE = (
    "For the speed of new prompts, measure again without --seed (each run then has prompts of its "
    "own), with texts that do not repeat, or with the server's prefix cache off."
)


def iter_cache_remarks(summary: StudySummary) -> Iterator[Phrase]:
    """Yield a remark if a prefix cache answered requests that should have been computed."""
    workloads = []
    shares = []
    count = 0
    for point in summary.points:
        if point.cached is not None:
            workloads.append(point.point.workload)
            shares.append(point.cached.share)
            count += point.cached.trials
    if not workloads:
        return
    low = min(shares)
    high = max(shares)
    answered = say(make_share(high))
    if f"{low:.2f}" != f"{high:.2f}":
        answered = say(make_share(low), " to ", make_share(high))
    yield say(
        strong("Cached prompts:"),
        " on ",
        _format_distinct(workloads),
        " a prefix cache answered ",
        answered,
        f" of the prompt tokens ({format_count(count, 'trial')}): the figures are not those of new "
        "prompts. ",
        WITHOUT_CACHE,
    )


def _format_distinct(texts: Iterable[str]) -> Phrase:
    return format_names(dict.fromkeys(texts), most=MAX_NAMED)


CHUNKED = 1.1  # tokens per chunk: below it, engines only hold back parts of characters
LONG_GAP_S = 1.0  # a stall lasts at least this long
LONG_GAP = 10.0  # and at least this many times the median gap


def iter_stream_remarks(summary: StudySummary) -> Iterator[Phrase]:
    """Yield remarks on streams with fewer chunks than tokens, and on streams that stalled."""
    streams = [(point, point.streams) for point in summary.points if point.streams is not None]
    chunked = [pair for pair in streams if pair[1].tokens_per_chunk >= CHUNKED]
    if chunked:
        yield say(strong("Fewer chunks than tokens:"), _describe_chunks(chunked))
    stalled = [pair for pair in streams if _has_stalled(pair[1])]
    if stalled:
        point, stream = max(stalled, key=lambda pair: pair[1].longest_gap_s or 0.0)
        yield say(
            strong("Longest gap:"),
            " an answer on ",
            Name(point.point.workload),
            " stood still for ",
            make_number(stream.longest_gap_s, Unit.SECONDS),
            "; the median gap is ",
            make_number(stream.median_gap_s, Unit.SECONDS),
            ".",
        )


def _describe_chunks(chunked: Sequence[tuple[PointSummary, StreamSummary]]) -> Phrase:
    """Return how many tokens a chunk has, and what TPOT means then."""
    sizes = [stream.tokens_per_chunk for _, stream in chunked]
    low = f"{min(sizes):.1f}"
    high = f"{max(sizes):.1f}"
    tokens = low if low == high else f"{low} to {high}"
    meaning = "is unknown where nothing tells when their tokens came"
    if all("tpot_s" in point.metrics for point, _ in chunked):
        meaning = "is that after the first chunk"
    return say(
        " on ",
        _format_distinct(point.point.workload for point, _ in chunked),
        f" a chunk has {tokens} tokens on average. ITL is the gap between chunks; TPOT {meaning}.",
    )


def _has_stalled(stream: StreamSummary) -> bool:
    if stream.longest_gap_s is None or stream.median_gap_s is None:
        return False
    return stream.longest_gap_s >= max(LONG_GAP_S, LONG_GAP * stream.median_gap_s)


def iter_remarks(summary: StudySummary) -> Iterator[Words]:
    """Yield a sentence for everything that a reader must know before the tables."""
    labels = Labels.of(summary, MAX_NAME)
    yield from iter_cache_remarks(summary)
    yield from iter_stream_remarks(summary)
    if failed := _list_failed(summary, labels):
        yield say("Failed: ", join_phrases(failed, "; "), ".")
    if any(row.ratios for row in summary.rejections):
        rejected = _describe_rejections(summary, labels)
        beside = ". Below, ratios with these trials are next to those without."
        yield say(strong("Rejected:"), " ", rejected, beside)
    if attempts := _list_attempts(summary):
        variants = dict.fromkeys(refusal.point.config.variant for refusal in attempts)
        yield say("Could not be made: ", format_names(variants), "; run the study again to retry.")
    if summary.in_float32:
        yield say(
            "Computed in float32: ",
            _format_distinct(labels[config] for config in summary.in_float32),
            f"; this processor ({summary.level}) has no bf16 instructions, and the study names no "
            "type.",
            " ",
            Name("dtype: bfloat16"),
            " in the engine's args measures bf16.",
        )
    if flagged := {outlier.trial_id for point in summary.points for outlier in point.outliers}:
        trials = format_count(len(flagged), "trial")
        yield f"Outliers: {trials} flagged (still included in the means)."
    if unfinished := sum(point.is_unfinished for point in summary.points):
        total = format_count(len(summary.points), "point")
        yield f"Not finished: {unfinished} of {total} lack trials; run the study again to resume."
    ranked = (point for point in summary.points if has_ranked_result(summary, point))
    if not all(point.metrics[summary.primary_metric].covers_starts for point in ranked):
        yield "Caution: some points have a single start, so they have no interval and no rank."


def _describe_rejections(summary: StudySummary, labels: Labels) -> Phrase:
    """Return how many trials of each config were rejected."""
    parts = []
    for row in summary.rejections:
        if row.rejected:
            count = f"{row.rejected} of {row.attempted} trials of "
            parts.append(say(count, Name(labels[row.config])))
    return join_phrases(parts, "; ")


def _list_attempts(summary: StudySummary) -> list[Refusal]:
    """Return the refusals of variants that bitbench tried to make."""
    return [refusal for refusal in summary.refusals if refusal.was_tried]


def _list_failed(summary: StudySummary, labels: Labels) -> list[Phrase]:
    """Return the points without a result by outcome: `a and b on one and eight (unsupported)`."""
    groups: dict[str, list[Point]] = {}
    for point in summary.points:
        if point.failures and not has_ranked_result(summary, point):
            outcomes = {group.failure.outcome.value for group in point.failures}
            groups.setdefault(", ".join(sorted(outcomes)), []).append(point.point)
    return [say(_describe_affected(points, labels), f" ({key})") for key, points in groups.items()]

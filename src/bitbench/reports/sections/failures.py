"""What is missing and why: remarks before any table, trials that failed by their cause, and points refused before
anything started."""

import re
from collections.abc import Iterable, Iterator, Sequence

from bitbench.analysis.results.summary import PointSummary, StreamSummary, StudySummary
from bitbench.records.trial import NOT_THE_ENGINES, Failure, Outcome
from bitbench.reports.document.model import Block, CodeBlock, Details, Name, Phrase, Section, Unit
from bitbench.reports.document.numbers import number, share
from bitbench.reports.document.words import (
    MAX_NAME,
    Words,
    bullets,
    joined,
    listing,
    name_phrases,
    paragraph,
    plain_words,
    plural,
    say,
    small_print,
    strong,
    table,
    words_column,
)
from bitbench.reports.labels import Labels, grouped
from bitbench.reports.sections.lead import MAX_NAMED
from bitbench.reports.sections.ranked import has_ranked_result
from bitbench.study.plan import Config, Point, Refusal

_NUMBER = re.compile(r"\d[\d.,]*")


def failures_by_workloads(points: Iterable[Point]) -> list[tuple[list[Config], list[str]]]:
    """Of points that share a cause: the configs that it meets on the same workloads."""
    workloads: dict[Config, tuple[str, ...]] = {
        config: tuple(point.workload for point in own)
        for config, own in grouped(points, lambda point: point.config).items()
    }
    return [
        (configs, list(alike))
        for alike, configs in grouped(workloads, workloads.__getitem__).items()
    ]


def _affected(points: Iterable[Point], labels: Labels) -> Phrase:
    """`a and b on x and y; c on x`"""
    groups = [
        say(
            listing(name_phrases(labels[config] for config in configs)),
            " on ",
            listing(name_phrases(workloads)),
        )
        for configs, workloads in failures_by_workloads(points)
    ]
    return joined(groups, "; ")


def _kind(failure: Failure) -> str:
    """What the machine spoiled differs from point to point in its numbers, and is one cause all the same; the first is
    shown. Of an engine a number may be all that tells two causes apart, such as an exit code."""
    return _NUMBER.sub("#", failure.cause) if failure.outcome in NOT_THE_ENGINES else failure.cause


def refusals_by_reason(refusals: Iterable[Refusal]) -> dict[str, list[Point]]:
    alike = grouped(refusals, lambda refusal: refusal.reason)
    return {reason: [refusal.point for refusal in same] for reason, same in alike.items()}


MAX_LOG_LINES = 12
MAX_IDS = 8
MAX_CAUSE = (
    200  # characters: a line or two of a terminal; what is cut off stands beside the log lines
)


def failures_section(summary: StudySummary) -> Section:
    """One bullet per cause; its trials and log lines are folded away behind it."""
    blocks: list[Block] = []
    labels = Labels.of(summary, MAX_NAME)
    failed = [(point.point, group) for point in summary.points for group in point.failures]
    for alike in grouped(
        failed, lambda pair: (pair[1].failure.outcome, _kind(pair[1].failure))
    ).values():
        failure, ids = alike[0][1].failure, [trial for _, group in alike for trial in group.ids]
        affected = _affected((point for point, _ in alike), labels)
        blocks += bullets(
            [
                _sentence(
                    failure.outcome.value,
                    f" ({plural(len(ids), 'trial')})",
                    affected,
                    failure.cause,
                )
            ]
        )
        blocks.append(_evidence(failure, ids))
    not_made = (refusal for refusal in summary.refusals if refusal.was_tried)
    blocks += bullets(
        _sentence("not made", "", _affected(points, labels), reason)
        for reason, points in refusals_by_reason(not_made).items()
    )
    blocks += bullets(
        _sentence(
            row.outcome.value,
            "",
            say("quality of ", Name(labels[row.config])),
            row.cause or "no cause is known",
        )
        for row in summary.quality
        if row.outcome is not Outcome.OK
    )
    shown = tuple(blocks) or (small_print("Nothing failed."),)
    return Section(say("What failed, and why"), shown, in_terminal=bool(blocks))


def _sentence(outcome: str, many: str, affected: Phrase, cause: str) -> Phrase:
    return say(strong(outcome), many, ": ", affected, ": ", plain_words(cause, MAX_CAUSE))


def _evidence(failure: Failure, ids: Sequence[str]) -> Details:
    whole = f": {failure.cause}" if len(failure.cause) > MAX_CAUSE else ""
    log = [CodeBlock(failure.log_lines[-MAX_LOG_LINES:])] if failure.log_lines else []
    where = paragraph("In ", listing(name_phrases(ids), most=MAX_IDS), whole, ":" if log else ".")
    return Details(f"Trials and log lines: {failure.outcome.value}", (where, *log))


def refusals_section(summary: StudySummary) -> Section | None:
    """Refusals known before any trial: a table by reason, so that what applies to many is read once."""
    alike = [
        (reason, configs, workloads)
        for reason, points in refusals_by_reason(
            refusal for refusal in summary.refusals if not refusal.was_tried
        ).items()
        for configs, workloads in failures_by_workloads(points)
    ]
    labels = Labels.of(summary, MAX_NAME)
    reasons = table(
        alike,
        words_column("Reason", lambda row: row[0]),
        words_column(
            "Configs", lambda row: listing(name_phrases(labels[config] for config in row[1]))
        ),
        words_column("Workloads", lambda row: listing(name_phrases(row[2]))),
    )
    return Section(say("Refused up front"), (reasons,), in_terminal=True) if alike else None


WITHOUT_CACHE = (
    "For the speed of new prompts, measure again without --seed (each run then has prompts of its own), with texts "
    "that do not repeat, or with the server's prefix cache off."
)


def cached_remarks(summary: StudySummary) -> Iterator[Phrase]:
    """What a prefix cache answered that was not asked for."""
    cached = [(point.point, point.cached) for point in summary.points if point.cached is not None]
    if not cached:
        return
    low, high = min(found.share for _, found in cached), max(found.share for _, found in cached)
    shares = (
        say(share(high)) if f"{low:.2f}" == f"{high:.2f}" else say(share(low), " to ", share(high))
    )
    workloads = listing(
        name_phrases(dict.fromkeys(point.workload for point, _ in cached)), most=MAX_NAMED
    )
    trials = plural(sum(found.trials for _, found in cached), "trial")
    yield say(
        strong("Cached prompts:"), " on ", workloads, " a prefix cache answered ", shares,
        f" of the prompt tokens ({trials}): the figures are not those of new prompts. ", WITHOUT_CACHE,
    )  # fmt: skip


CHUNKED = 1.1  # tokens a chunk: fewer are parts of characters, which some engines hold back
LONG_GAP_S, LONG_GAP = 1.0, 10.0  # a stall: so long, and so many times the median


def stream_remarks(summary: StudySummary) -> Iterator[Phrase]:
    """Answers that came in larger chunks than tokens, and those that stood still."""
    known = [(point, point.streams) for point in summary.points if point.streams is not None]
    chunked = [
        (point, found.tokens_per_chunk)
        for point, found in known
        if found.tokens_per_chunk >= CHUNKED
    ]
    if chunked:
        low, high = min(tokens for _, tokens in chunked), max(tokens for _, tokens in chunked)
        many = f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f}"
        where = listing(
            name_phrases(dict.fromkeys(point.point.workload for point, _ in chunked)),
            most=MAX_NAMED,
        )
        is_timed = all("tpot_s" in point.metrics for point, _ in chunked)
        how = (
            "is that after the first chunk"
            if is_timed
            else "is unknown where nothing tells when their tokens came"
        )
        said = say(
            " on ",
            where,
            f" a chunk has {many} tokens on average. ITL is the gap between chunks; TPOT {how}.",
        )
        yield say(strong("Fewer chunks than tokens:"), said)
    stalled = [(point, found) for point, found in known if _stood_still(found)]
    if stalled:
        point, found = max(stalled, key=lambda pair: pair[1].longest_gap_s or 0.0)
        longest, median = (
            number(gap, Unit.SECONDS) for gap in (found.longest_gap_s, found.median_gap_s)
        )
        stood = say(" an answer on ", Name(point.point.workload), " stood still for ", longest)
        yield say(strong("Longest gap:"), stood, "; the median gap is ", median, ".")


def _stood_still(found: StreamSummary) -> bool:
    if found.longest_gap_s is None or found.median_gap_s is None:
        return False
    return found.longest_gap_s >= max(LONG_GAP_S, LONG_GAP * found.median_gap_s)


def remarks(summary: StudySummary) -> Iterator[Words]:
    labels = Labels.of(summary, MAX_NAME)
    yield from cached_remarks(summary)
    yield from stream_remarks(summary)
    if failed := _failed(summary, labels):
        yield say("Failed: ", joined(failed, "; "), ".")
    if any(row.ratios for row in summary.rejections):
        rejected = (
            say(f"{row.rejected} of {row.attempted} trials of ", Name(labels[row.config]))
            for row in summary.rejections
            if row.rejected
        )
        beside = ". Below, ratios with these trials are next to those without."
        yield say(strong("Rejected:"), " ", joined(list(rejected), "; "), beside)
    if not_made := [refusal.point.config for refusal in summary.refusals if refusal.was_tried]:
        variants = listing(name_phrases(dict.fromkeys(config.variant for config in not_made)))
        yield say("Could not be made: ", variants, "; run the study again to retry.")
    if summary.in_float32:
        named = listing(
            name_phrases(dict.fromkeys(labels[config] for config in summary.in_float32)),
            most=MAX_NAMED,
        )
        why = f"; this processor ({summary.level}) has no bf16 instructions, and the study names no type."
        asked = say(" ", Name("dtype: bfloat16"), " in the engine's args measures bf16.")
        yield say("Computed in float32: ", named, why, asked)
    if flagged := {outlier.trial_id for point in summary.points for outlier in point.outliers}:
        yield f"Outliers: {plural(len(flagged), 'trial')} flagged (still included in the means)."
    if unfinished := sum(point.is_unfinished for point in summary.points):
        total = plural(len(summary.points), "point")
        yield f"Not finished: {unfinished} of {total} lack trials; run the study again to resume."
    estimates = [
        point.metrics[summary.primary_metric]
        for point in summary.points
        if has_ranked_result(summary, point)
    ]
    if any(not estimate.covers_starts for estimate in estimates):
        yield "Caution: some points have a single start, so they have no interval and no rank."


def _failed(summary: StudySummary, labels: Labels) -> list[Phrase]:
    """`a and b on one and eight (unsupported)`: those that failed alike are named together."""
    without = [
        point
        for point in summary.points
        if point.failures and not has_ranked_result(summary, point)
    ]

    def outcomes(point: PointSummary) -> str:
        return ", ".join(sorted({group.failure.outcome.value for group in point.failures}))

    alike = grouped(without, outcomes)
    return [
        say(_affected((point.point for point in own), labels), f" ({said})")
        for said, own in alike.items()
    ]

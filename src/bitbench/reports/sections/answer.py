"""What is missing, and what to be careful with: said before any table."""

from collections.abc import Iterator

from bitbench.analysis.results.summary import StopReason, StudySummary
from bitbench.reports.document.model import Name, Phrase
from bitbench.reports.document.text import MAX_NAME
from bitbench.reports.document.words import Words, joined, listing, names, plural, say, strong
from bitbench.reports.grouping import grouped
from bitbench.reports.labels import Labels
from bitbench.reports.quantities import share
from bitbench.reports.sections.lead import MAX_NAMED
from bitbench.reports.sections.ranked import has_result
from bitbench.study.plan import Config

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
    shares = say(share(high)) if f"{low:.2f}" == f"{high:.2f}" else say(share(low), " to ", share(high))
    workloads = listing(names(dict.fromkeys(point.workload for point, _ in cached)), most=MAX_NAMED)
    trials = plural(sum(found.trials for _, found in cached), "trial")
    yield say(
        strong("Cached prompts:"), " on ", workloads, " a prefix cache answered ", shares,
        f" of the prompt tokens ({trials}): the figures are not those of new prompts. ", WITHOUT_CACHE,
    )  # fmt: skip


def remarks(summary: StudySummary) -> Iterator[Words]:
    labels = Labels.of(summary, MAX_NAME)
    yield from cached_remarks(summary)
    if failed := _failed(summary, labels):
        yield say("Failed: ", joined(failed, "; "), ".")
    if not_made := [refusal.point.config for refusal in summary.refusals if refusal.was_tried]:
        variants = listing(names(dict.fromkeys(config.variant for config in not_made)))
        yield say("Could not be made: ", variants, "; run the study again to retry.")
    if refused := [refusal.point for refusal in summary.refusals if not refusal.was_tried]:
        configs = list(dict.fromkeys(labels[point.config] for point in refused))
        named = listing(names(configs)) if len(configs) <= MAX_NAMED else say(f"{len(configs)} configs")
        whole = [workload.name for workload in summary.study.workloads if not summary.points_of(workload.name)]
        if whole and {point.workload for point in refused} <= set(whole):
            named = say("every config on ", listing(names(whole)))
        yield say(f"Refused up front: {plural(len(refused), 'point')} of ", named, ".")
    for dtype, noted in grouped(
        [processor_note for processor_note in summary.processor_notes if processor_note.dtype], lambda note: note.dtype
    ).items():
        affected = list(dict.fromkeys(labels[note.config] for note in noted))
        who = listing(names(affected)) if len(affected) <= MAX_NAMED else say(f"{len(affected)} configs")
        why = f"; this processor ({summary.level}) has no bf16 instructions, and the study names no type."
        asked = say(" ", Name("dtype: bfloat16"), " in the engine's args measures bf16.")
        yield say(f"Computed in {dtype}: ", who, why, asked)
    if flagged := {outlier.trial_id for point in summary.points for outlier in point.outliers}:
        yield f"Outliers: {plural(len(flagged), 'trial')} flagged (still included in the means)."
    if unfinished := sum(point.stop_reason is StopReason.UNFINISHED for point in summary.points):
        total = plural(len(summary.points), "point")
        yield f"Not finished: {unfinished} of {total} lack trials; run the study again to resume."
    if summary.idle_share is not None:
        idle = say(share(summary.idle_share), " of the processors' energy is what they take when idle")
        yield say("CPU energy: ", idle, "; the rest is the engine's and the client's.")
    estimates = [point.metrics[summary.primary_metric] for point in summary.points if has_result(summary, point)]
    if any(not estimate.covers_starts for estimate in estimates):
        remedy = "" if summary.imported_from else " Set `starts` to 3 or more."
        yield (
            "Caution: some points have a single start; their intervals do not cover a restart, so a difference may "
            f"come from the start alone.{remedy}"
        )


def _failed(summary: StudySummary, labels: Labels) -> list[Phrase]:
    """`a and b on all 3 workloads tried (unsupported)`: those that failed alike are named together."""
    without = [point for point in summary.points if point.failures and not has_result(summary, point)]
    failed = grouped(without, lambda point: point.point.config)

    def how(config: Config) -> Phrase:
        points = failed[config]
        tried = sum(point.point.config == config for point in summary.points)
        where = listing(names(point.point.workload for point in points))
        if len(points) == tried > 2:
            where = say(f"all {tried} workloads tried")
        outcomes = ", ".join(sorted({group.failure.outcome.value for point in points for group in point.failures}))
        return say(" on ", where, f" ({outcomes})")

    alike = grouped(failed, how)
    return [say(listing(names(labels[config] for config in configs)), where) for where, configs in alike.items()]

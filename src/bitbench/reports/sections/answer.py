"""What is missing, and what to be careful with: said before any table."""

from collections.abc import Iterator

from bitbench.analysis.results.summary import StopReason, StudySummary
from bitbench.reports.document.model import Name, Phrase
from bitbench.reports.document.text import MAX_NAME
from bitbench.reports.document.words import Words, joined, listing, names, plural, say
from bitbench.reports.grouping import grouped
from bitbench.reports.labels import Labels
from bitbench.reports.sections.lead import MAX_NAMED
from bitbench.reports.sections.ranked import has_result
from bitbench.study.plan import Contender


def remarks(summary: StudySummary) -> Iterator[Words]:
    labels = Labels.of(summary, MAX_NAME)
    if failed := _failed(summary, labels):
        yield say("Failed: ", joined(failed, "; "), ".")
    if not_made := [refusal.cell.contender for refusal in summary.refusals if refusal.was_tried]:
        variants = listing(names(dict.fromkeys(contender.variant for contender in not_made)))
        yield say("Could not be made: ", variants, "; run the study again to retry.")
    if refused := [refusal.cell for refusal in summary.refusals if not refusal.was_tried]:
        contenders = list(dict.fromkeys(labels[cell.contender] for cell in refused))
        named = listing(names(contenders)) if len(contenders) <= MAX_NAMED else say(f"{len(contenders)} contenders")
        whole = [workload.name for workload in summary.study.workloads if not summary.cells_of(workload.name)]
        if whole and {cell.workload for cell in refused} <= set(whole):
            named = say("every contender on ", listing(names(whole)))
        yield say(f"Refused up front: {plural(len(refused), 'cell')} of ", named, ".")
    for dtype, noted in grouped(
        [processor_note for processor_note in summary.processor_notes if processor_note.dtype], lambda one: one.dtype
    ).items():
        affected = list(dict.fromkeys(labels[one.contender] for one in noted))
        who = listing(names(affected)) if len(affected) <= MAX_NAMED else say(f"{len(affected)} contenders")
        why = f"; this processor ({summary.level}) has no bf16 instructions, and the study names no type."
        asked = say(" ", Name("dtype: bfloat16"), " in the engine's args measures bf16.")
        yield say(f"Computed in {dtype}: ", who, why, asked)
    if flagged := {outlier.trial_id for cell in summary.cells for outlier in cell.outliers}:
        yield f"Outliers: {plural(len(flagged), 'trial')} flagged (still included in the means)."
    if unfinished := sum(cell.stop_reason is StopReason.UNFINISHED for cell in summary.cells):
        total = plural(len(summary.cells), "cell")
        yield f"Not finished: {unfinished} of {total} lack trials; run the study again to resume."
    estimates = [cell.metrics[summary.headline] for cell in summary.cells if has_result(summary, cell)]
    if any(not estimate.covers_starts for estimate in estimates):
        remedy = "" if summary.imported_from else " Set `instances` to 3 or more."
        yield (
            "Caution: some cells have a single instance; their intervals do not cover a restart, so a difference may "
            f"come from the start alone.{remedy}"
        )


def _failed(summary: StudySummary, labels: Labels) -> list[Phrase]:
    """`a and b on all 3 workloads tried (unsupported)`: those that failed alike are named together."""
    without = [cell for cell in summary.cells if cell.failures and not has_result(summary, cell)]
    failed = grouped(without, lambda cell: cell.cell.contender)

    def how(contender: Contender) -> Phrase:
        cells = failed[contender]
        tried = sum(cell.cell.contender == contender for cell in summary.cells)
        where = listing(names(cell.cell.workload for cell in cells))
        if len(cells) == tried > 2:
            where = say(f"all {tried} workloads tried")
        outcomes = ", ".join(sorted({group.failure.outcome.value for cell in cells for group in cell.failures}))
        return say(" on ", where, f" ({outcomes})")

    alike = grouped(failed, how)
    return [say(listing(names(labels[one] for one in contenders)), where) for where, contenders in alike.items()]

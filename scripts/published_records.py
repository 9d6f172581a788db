"""Published records, imported and judged like a study. See `published_tables`."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from published_beside import PairCount, claimed, claims_table, ratio_table, starts_range
from published_studies import PointRow, baseline_label, figure_column, row_ratio, study_rows

from bitbench.analysis.results.summary import AgainstBaseline, StudySummary
from bitbench.features.interop.files import import_files
from bitbench.features.interop.readers.reading import ImportedStarts, Tool
from bitbench.machine.workplace import get_default_home
from bitbench.reports.document.markdown import render_markdown_phrase, render_markdown_table
from bitbench.reports.document.model import Name
from bitbench.reports.document.words import (
    build_table,
    format_count,
    make_ratio_column,
    make_words_column,
    say,
)
from bitbench.reports.labels import Labels
from bitbench.reports.sections import ranked
from bitbench.reports.write import StudyReport

COPIES = Path(__file__).parents[1] / "tests" / "unit" / "data" / "imports"


@cache
def read_record(name: str, starts: ImportedStarts) -> StudySummary:
    """Import a copy of a record, and return what bitbench makes of it."""
    with TemporaryDirectory() as place:
        folder = import_files([COPIES / name], Tool.PUBLISHED_TABLE, starts, Path(place) / "record")
        return StudyReport(folder, get_default_home()).summary


def write_recipes_record() -> Iterator[str]:
    """Yield the runs of the record with intervals, ranks and flagged runs."""
    summary = read_record("published-runs-all.md", ImportedStarts.PER_RUN)
    labels = Labels.of(summary)
    rankings = list(ranked.iter_rankings(summary))
    first = rankings[0][1]
    own, in_all = PairCount.of(first), PairCount.of_all(ranking for _, ranking in rankings)
    runs = starts_range(summary, first)
    faster = f"{claimed(first, AgainstBaseline.FASTER)} of {len(first.entries) - 1}"
    yield (
        f"**Of the {own.pairs} pairs of the record's first workload, n = {runs} runs tell {own.told_apart} apart.** "
        f"Of the {in_all.pairs} pairs on all {format_count(len(rankings), 'workload')} they tell {in_all.told_apart} apart. "
        f"On the first workload {faster} variants are significantly faster than the baseline."
    )
    yield render_markdown_table(
        build_table(
            study_rows(summary, [first.workload]),
            make_words_column("Workload", lambda row: Name(row.ranking.workload)),
            make_words_column("Model", lambda row: Name(labels.name(row.config))),
            make_words_column("n", lambda row: row.runs),
            figure_column("Latency", "latency_s", "s"),
            figure_column("Output Throughput", "output_throughput", "tok/s"),
            make_ratio_column(say("vs. ", Name(baseline_label(summary, labels))), row_ratio),
            make_words_column("Rank", lambda row: ranked.format_rank(row.entry)),
            make_words_column("Flagged runs", flagged_runs),
        )
    )
    yield render_markdown_table(claims_table(rankings))
    yield render_markdown_table(ratio_table(rankings, labels))
    yield one_start_sentence(PairCount.of_all(read_as_one_start("published-runs-all.md").rankings))
    yield import_notes(summary)


def read_as_one_start(name: str) -> StudySummary:
    """Return a record whose runs share one start of the engine."""
    return read_record(name, ImportedStarts.PER_FILE)


def one_start_sentence(counted: PairCount) -> str:
    """Say what is left if the runs were not starts of their own."""
    return (
        "These are the claims if each run was a start of its own. If the runs of a variant shared one start, they rank "
        f"nothing: {counted.text} pairs are told apart."
    )


def flagged_runs(row: PointRow) -> str:
    """Return the runs far from the others of a point."""
    outliers = [
        f"{outlier.value:,.2f}, median {outlier.median:,.2f}"
        for outlier in row.outliers
        if outlier.metric == row.ranking.metric
    ]
    return "; ".join(outliers) or "none"


def write_backends_record() -> Iterator[str]:
    """Yield the columns of the record with their ratio."""
    summary = read_record("published-backends.md", ImportedStarts.PER_FILE)
    labels = Labels.of(summary)
    (ranking,) = summary.rankings
    counted = PairCount.of(ranking)
    yield (
        f"**Of the {counted.pairs} pairs of this record, n = 1 run tells {counted.told_apart} apart.** "
        f"bitbench would need {ranking.starts_needed} starts of each."
    )
    yield render_markdown_table(
        build_table(
            study_rows(summary),
            make_words_column("Backend", lambda row: row.config.engine),
            make_words_column("n", lambda row: row.runs),
            figure_column("TTFT", "ttft_s", "ms", 1000),
            figure_column("TPOT", "tpot_s", "ms", 1000),
            make_ratio_column(say("TPOT vs. ", Name(baseline_label(summary, labels))), row_ratio),
            make_words_column("Rank", lambda row: ranked.format_rank(row.entry)),
        )
    )
    yield import_notes(summary)


def write_lengths_record() -> Iterator[str]:
    """Yield how many pairs the record has, and how many it can tell apart."""
    summary = read_record("published-grids.rst", ImportedStarts.PER_FILE)
    places = [place for place in ranked.iter_rankings(summary) if place[1].entries]
    counted = PairCount.of_all(ranking for _, ranking in places)
    with_memory = sum("device_peak_bytes" in point.metrics for point in summary.points)
    yield (
        f"**Of the {counted.pairs} pairs in our copy of this record, n = 1 run tells {counted.told_apart} apart.** "
        f"It has {len(summary.points)} points of {len(summary.models)} models. {with_memory} points have a memory."
    )
    yield import_notes(summary)


def import_notes(summary: StudySummary) -> str:
    """Return what was assumed or left out on the way."""
    assert summary.imported_from is not None
    notes = [f"- {render_markdown_phrase(say(note))}" for note in summary.imported_from.notes]
    return "\n".join(["What the import assumed or found:", "", *notes])

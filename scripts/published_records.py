"""Published records, imported and judged like a study. See `published_tables`."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from published_studies import PairCount, PointRow, baseline_label, figure_column, row_ratio, starts_range, study_rows

from bitbench.analysis.results.summary import (
    StudySummary,
)
from bitbench.features.interop.files import import_files
from bitbench.features.interop.readers.reading import ImportedStarts, Tool
from bitbench.machine.workplace import default_home
from bitbench.reports.document.markdown import markdown_phrase, markdown_table
from bitbench.reports.document.model import Name
from bitbench.reports.document.words import (
    ratio_column,
    say,
    table,
    words_column,
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
        return StudyReport(folder, default_home()).summary


def write_recipes_record() -> Iterator[str]:
    """Yield the runs of the record with intervals, ranks and flagged runs."""
    summary = read_record("published-runs.md", ImportedStarts.PER_RUN)
    as_one_start = read_record("published-runs.md", ImportedStarts.PER_FILE)
    labels = Labels.of(summary)
    (ranking,) = summary.rankings
    counted, of_one_start = PairCount.of(ranking), PairCount.of(as_one_start.rankings[0])
    runs = starts_range(summary, ranking)
    yield (
        f"**Of the {counted.pairs} pairs of the record's workload `{ranking.workload}`, n = {runs} runs tell "
        f"{counted.told_apart} apart**, if each run was a start of its own. As runs of one start they tell "
        f"{of_one_start.told_apart} apart: such runs rank nothing."
    )
    yield markdown_table(
        table(
            study_rows(summary),
            words_column("Model", lambda row: Name(labels.name(row.config))),
            words_column("n", lambda row: str(row.runs)),
            figure_column("Output Throughput", "output_throughput", "tok/s"),
            ratio_column(say("vs. ", Name(baseline_label(summary, labels))), row_ratio),
            words_column("Rank", lambda row: ranked.rank_text(row.entry)),
            words_column("Flagged runs", flagged_runs),
        )
    )
    yield import_notes(summary)


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
    yield markdown_table(
        table(
            study_rows(summary),
            words_column("Backend", lambda row: row.config.engine),
            words_column("n", lambda row: str(row.runs)),
            figure_column("TTFT", "ttft_s", "ms", 1000),
            figure_column("TPOT", "tpot_s", "ms", 1000),
            ratio_column(say("TPOT vs. ", Name(baseline_label(summary, labels))), row_ratio),
            words_column("Rank", lambda row: ranked.rank_text(row.entry)),
        )
    )
    yield import_notes(summary)


def write_lengths_record() -> Iterator[str]:
    """Yield how many pairs the record has, and how many it can tell apart."""
    summary = read_record("published-grids.rst", ImportedStarts.PER_FILE)
    places = [place for place in ranked.ranked_parts_by_model(summary) if place[1].entries]
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
    notes = [f"- {markdown_phrase(say(note))}" for note in summary.imported_from.notes]
    return "\n".join(["What the import assumed or found:", "", *notes])

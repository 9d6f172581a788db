"""Tables of studies of the gallery in published forms, and what stands beside them. See `published_tables`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from gallery_pages import GALLERY, PUBLISHED

from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import (
    Outlier,
    PointSummary,
    Ranking,
    RankingEntry,
    StudySummary,
)
from bitbench.features.interop.forms import DECIMALS, FIGURES
from bitbench.machine.workplace import get_default_home
from bitbench.records.folder import StudyFolder
from bitbench.records.lock import HostFacts
from bitbench.reports.document.markdown import render_markdown_phrase, render_markdown_table
from bitbench.reports.document.model import Name, Phrase, Quantity, Unit
from bitbench.reports.document.numbers import format_plus_minus, format_starts_and_trials
from bitbench.reports.document.words import (
    MAX_TEXT,
    ColumnOf,
    Words,
    build_table,
    format_count,
    format_list,
    format_plain_words,
    list_names,
    make_number_column,
    make_ratio_column,
    make_words_column,
    say,
)
from bitbench.reports.labels import Labels
from bitbench.reports.sections import ranked
from bitbench.reports.write import StudyReport
from bitbench.study.plan import Config
from bitbench.study.workload import format_length

NOT_MEASURED = "*Not measured yet.*"

MOST_ROWS, MOST_COLUMNS = 25, 8
# Of recipes-by-workload, in this order while the rows fit on a screen: one request, a long prompt, many requests.
SHOWN_WORKLOADS = ("interactive", "prefill_bound", "base", "base-128")


@cache
def read_study(section: str) -> StudyReport | None:
    """Return the study of a section, or None while the gallery does not have it."""
    folder = GALLERY / section
    if not (folder / "lock.json").exists():
        return None
    return StudyReport(StudyFolder.existing(folder), get_default_home())


@dataclass(frozen=True)
class PointRow:
    """A config at a workload, with the ranking that it is in."""

    part: StudySummary
    ranking: Ranking
    config: Config
    point: PointSummary | None  # None: refused before it was started

    @property
    def entry(self) -> RankingEntry | None:
        return ranked.find_ranked_entry(self.ranking, self.config)

    @property
    def runs(self) -> str:
        return str(len(self.point.runs)) if self.point else "0"

    @property
    def outliers(self) -> tuple[Outlier, ...]:
        return self.point.outliers if self.point else ()

    def estimate(self, metric: str) -> Estimate | None:
        return self.point.metrics.get(metric) if self.point else None


def study_rows(
    summary: StudySummary, wanted_workloads: Sequence[str] | None = None
) -> list[PointRow]:
    """Return the points of some workloads, by default of all; the best of each workload comes first."""
    rows: list[PointRow] = []
    for part, ranking in ranked.iter_rankings(summary):
        if wanted_workloads is None or ranking.workload in wanted_workloads:
            rows += ranking_rows(part, ranking)
    return rows


def ranking_rows(part: StudySummary, ranking: Ranking) -> list[PointRow]:
    """Return the points of a workload, then the variants that no engine of the study took."""
    points = ranked.list_ranked_points(part, ranking)
    rows = [PointRow(part, ranking, point.point.config, point) for point in points]
    started = {point.point.config.variant for point in part.points}
    for refusal in part.refusals:
        config = refusal.point.config
        if refusal.point.workload == ranking.workload and config.variant not in started:
            started.add(config.variant)
            rows.append(PointRow(part, ranking, config, None))
    return rows


Columns = list[ColumnOf[PointRow]]


def write_if_measured(
    section: str, write: Callable[[str, StudyReport], Iterable[str]]
) -> Iterable[str]:
    """Return what is written of the study of a section, or that there is none yet."""
    report = read_study(section)
    return [NOT_MEASURED] if report is None else write(section, report)


def write_study_table(section: str, report: StudyReport) -> Iterator[str]:
    """Yield a study in the columns of its record, with the ratio to the baseline, and what is below it."""
    summary = report.summary
    labels = Labels.of(summary)
    notes = Notes.of(summary, labels)
    rows, columns = CONTENTS[section](summary, labels, notes)
    versus = make_ratio_column(say("vs. ", Name(baseline_label(summary, labels))), row_ratio)
    yield render_markdown_table(build_table(rows, *columns, versus))
    yield from below_table(section, report, notes, len(rows))


def recipes_content(
    summary: StudySummary, labels: Labels, notes: "Notes"
) -> tuple[list[PointRow], Columns]:
    """Return the runs by workload."""
    columns: Columns = [
        make_words_column("Workload", lambda row: Name(row.ranking.workload)),
        make_words_column("Model", lambda row: Name(labels.name(row.config))),
        make_words_column("n", lambda row: row_trials(row, notes)),
    ]
    columns += [figure_column(title, *FIGURES[title]) for title in FIGURES]
    return study_rows(summary, shown_workloads(summary)), columns


def lengths_content(
    summary: StudySummary,
    labels: Labels,  # noqa: ARG001
    notes: "Notes",
) -> tuple[list[PointRow], Columns]:
    """Return speed and memory by length of the prompt."""
    memory = ranked.find_memory_metric(summary)
    order = [row.config for row in summary.configs]
    rows = study_rows(summary)[:MOST_ROWS]
    rows.sort(key=lambda row: (*row_length_order(row), order.index(row.config)))
    columns: Columns = [
        make_words_column("Model", row_model),
        make_words_column("Input Length", row_length),
        make_words_column("Quantization", lambda row: row.config.variant.rpartition("/")[2]),
        make_words_column("Engine", lambda row: row.config.engine),
        make_words_column("n", lambda row: row_trials(row, notes)),
        figure_column("Speed", "output_throughput", "tokens/s"),
        make_number_column(
            "Memory", "GB", lambda row: row_gigabytes(row, memory), decimals=DECIMALS
        ),
    ]
    return rows, columns


def backends_content(
    summary: StudySummary,
    labels: Labels,  # noqa: ARG001
    notes: "Notes",
) -> tuple[list[PointRow], Columns]:
    """Return a row for each backend at each workload."""
    columns: Columns = [
        make_words_column("Backend", lambda row: row.config.engine),
        make_words_column("Model", lambda row: Name(row.config.variant)),
        make_words_column("Workload", lambda row: Name(row.ranking.workload)),
        make_words_column("n", lambda row: row_trials(row, notes)),
        figure_column("TTFT", "ttft_s", "ms", 1000),
        figure_column("TPOT", "tpot_s", "ms", 1000),
    ]
    return study_rows(summary)[:MOST_ROWS], columns


CONTENTS = {
    "recipes-by-workload": recipes_content,
    "backends": backends_content,
    "speed-by-length": lengths_content,
}


def shown_workloads(summary: StudySummary) -> list[str]:
    """Return as many workloads as fit on a screen."""
    known = [ranking.workload for ranking in summary.rankings if ranking.entries]
    preferred = [name for name in SHOWN_WORKLOADS if name in known] or known
    rows = len(study_rows(summary, preferred[:1]))
    return preferred[: max(1, MOST_ROWS // max(rows, 1))]


def figure_column(title: str, metric: str, unit: str, factor: float = 1) -> ColumnOf[PointRow]:
    """Return a column of means and standard deviations, as records print them."""

    def figure(row: PointRow) -> Phrase | None:
        return mean_and_deviation(row.estimate(metric), factor)

    return make_number_column(f"{title} ({unit})", Unit.NONE, figure)


def mean_and_deviation(estimate: Estimate | None, factor: float = 1) -> Phrase | None:
    """Return `193.82 ± 6.87`; a single trial has no deviation, and None has nothing."""
    if estimate is None:
        return None
    sd = estimate.basis.trial_sd if estimate.basis else None
    return format_plus_minus(
        rounded(estimate.value * factor), None if sd is None else rounded(sd * factor)
    )


def rounded(value: float) -> Quantity:
    """Return a number with two decimals, as the records have it."""
    return Quantity(value, decimals=DECIMALS)


def row_trials(row: PointRow, notes: "Notes") -> str:
    """Return starts and trials, or what came of the point with the number of its reason."""
    speed = row.estimate(row.ranking.metric)
    if speed is not None:
        return format_starts_and_trials(speed)
    number = notes.number_of(row)
    outcome = ranked.format_outcomes(row.point) if row.point else "refused"
    reason = "" if number is None else f", reason {number}"
    return f"{outcome or 'not run'}{reason}"


def row_ratio(row: PointRow) -> Words:
    """Return the ratio to the baseline with its interval."""
    return ranked.format_versus_baseline(row.ranking, row.entry)


def row_model(row: PointRow) -> str:
    """Return the model without the recipe."""
    return row.config.variant.rpartition("/")[0]


def row_length(row: PointRow) -> str:
    """Return the length of the prompt."""
    return format_length(row.part.study.workload(row.ranking.workload).input_tokens)


def row_length_order(row: PointRow) -> tuple[str, float]:
    """Sort by model, then by the length of the prompt."""
    tokens = row.part.study.workload(row.ranking.workload).input_tokens
    return row_model(row), tokens if isinstance(tokens, int) else float("inf")


def row_gigabytes(row: PointRow, metric: str) -> float | None:
    """Return the memory in units of 10⁹ bytes, as the record has it."""
    memory = row.estimate(metric)
    return None if memory is None else memory.value / 1e9


def baseline_label(summary: StudySummary, labels: Labels) -> str:
    """Return what ratios are to: a config, or a recipe where each model has its own."""
    if summary.baseline is None:
        return "baseline"
    if summary.models:
        return f"{summary.baseline.variant.rpartition('/')[2]} @ {summary.baseline.engine}"
    return labels.name(summary.baseline)


@dataclass(frozen=True)
class Notes:
    """Why points of a study have no figures: each reason once, with its number."""

    reasons: tuple[str, ...]
    sentences: tuple[str, ...]

    @classmethod
    def of(cls, summary: StudySummary, labels: Labels) -> "Notes":
        """Collect what the plan refused and what the engines refused, in their own words."""
        told: dict[str, list[tuple[Config, str]]] = {}
        for point in summary.points:
            for group in point.failures:
                if not ranked.has_ranked_result(summary, point):
                    told.setdefault(group.failure.cause, []).append(
                        (point.point.config, point.point.workload)
                    )
        for refusal in summary.refusals:
            told.setdefault(refusal.reason, []).append(
                (refusal.point.config, refusal.point.workload)
            )
        sentences = [reason_sentence(reason, places, labels) for reason, places in told.items()]
        return cls(tuple(told), tuple(sentences))

    def number_of(self, row: PointRow) -> int | None:
        """Return the number of the first reason of a point; None if it has none."""
        if row.point:
            told = [group.failure.cause for group in row.point.failures]
        else:
            told = [
                refusal.reason
                for refusal in row.part.refusals
                if refusal.point.config == row.config
            ]
        return next(
            (self.reasons.index(reason) + 1 for reason in told if reason in self.reasons), None
        )


def reason_sentence(reason: str, places: Iterable[tuple[Config, str]], labels: Labels) -> str:
    """Return who is concerned, where, and the reason in the words that were given."""
    known = list(places)
    configs = dict.fromkeys(labels.name(config) for config, _ in known)
    workloads = list(dict.fromkeys(workload for _, workload in known))
    who, where = format_list(list_names(configs)), format_list(list_names(workloads), most=3)
    return render_markdown_phrase(
        say(who, " on ", where, f": {format_plain_words(reason, MAX_TEXT)}")
    )


def below_table(section: str, report: StudyReport, notes: Notes, shown: int) -> Iterator[str]:
    """Yield what a table leaves out, where it was measured and where the whole is."""
    place = f"../examples/gallery/{section}"
    points = len(report.summary.points) + len(report.summary.refusals)
    whole = [f"[the whole report]({place}/report/report.md)"]
    form = GALLERY / section / f"{section}.{PUBLISHED[section][1]}"
    if form.exists():
        whole.append(f"[the whole table in the form of the record]({place}/{form.name})")
    yield (
        f"{shown} of {points} points: {' and '.join(whole)}. n is starts of the engine / runs, ± the standard "
        "deviation of the runs. A ratio above 1 is better. Brackets are the 95 % interval of the ratio."
    )
    if notes.sentences:
        numbered = (
            f"{number}. {sentence}" for number, sentence in enumerate(notes.sentences, start=1)
        )
        yield "Without figures, and why:"
        yield "\n".join(numbered)
    yield test_machine(report.records.lock.host, report.records.lock.created_at)


def test_machine(host: HostFacts, created_at: str | None) -> str:
    """Return one line about where and when."""
    day = f", {created_at[:10]}" if created_at else ""
    return f"*Test machine: {host.cpu_model}, {format_count(host.cores or 0, 'core')}{day}.*"

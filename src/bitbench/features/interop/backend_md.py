"""TTFT and TPOT with one column per backend: its version and the kernel it really selected stand beside the figures."""

from collections.abc import Iterator, Sequence

from bitbench.analysis.results.summary import PointSummary, Ranking, StudySummary
from bitbench.api.forms import ReportedStudy
from bitbench.reports.document.markdown import markdown
from bitbench.reports.document.model import Document, Name, Paragraph, Section, Table
from bitbench.reports.document.tables import ColumnOf, table, words_column
from bitbench.reports.document.text import MAX_NAME, plain
from bitbench.reports.document.words import Words, paragraph, say, strong
from bitbench.reports.quantities import estimated
from bitbench.reports.sections.ranked import entry_of, in_order, outcomes_of, rank, titled
from bitbench.reports.shape import shape

TIMES = {"TTFT": "ttft_s", "TPOT": "tpot_s"}
LEGEND = (
    "Times are means with their interval; TTFT counts from the planned send to the first token, TPOT is the time per "
    "further token. Kernels are in the engine's own words; – is unknown."
)


def backend_markdown(of: ReportedStudy) -> str:
    sections = [
        Section(
            titled(Name(ranking.workload), part),
            (Paragraph(shape(part.study.workload(ranking.workload))), _backends(part, ranking, points)),
        )
        for part in of.summary.by_model
        for ranking in part.rankings
        if (points := in_order(part, ranking))
    ]
    return markdown(Document(say(f"{of.summary.study.name}: backends"), (paragraph(LEGEND),), tuple(sections)))


def _backends(summary: StudySummary, ranking: Ranking, points: Sequence[PointSummary]) -> Table:
    """A column per point, a row per fact."""

    def column(place: int) -> ColumnOf[tuple[str, list[Words]]]:
        return words_column(plain(points[place].point.config.engine, MAX_NAME), lambda fact: fact[1][place])

    return table(
        _facts(summary, ranking, points),
        words_column(strong("Backend"), lambda fact: strong(fact[0])),
        *map(column, range(len(points))),
    )


def _facts(
    summary: StudySummary, ranking: Ranking, points: Sequence[PointSummary]
) -> Iterator[tuple[str, list[Words]]]:
    known = {config.config: config for config in summary.configs}
    configs = [point.point.config for point in points]
    yield "Model", [plain(config.variant, MAX_NAME) for config in configs]
    yield "Version", [_words(known[config].engine_versions if config in known else ()) for config in configs]
    yield "Kernel", [_words(known[config].kernels if config in known else ()) for config in configs]
    for title, metric in TIMES.items():
        yield title, [estimated(point.metrics.get(metric), summary.definitions[metric]) for point in points]
    name = summary.definitions[ranking.metric].name
    yield f"Rank by {name}", [rank(entry_of(ranking, config)) for config in configs]
    if any(point.failures for point in points):
        yield "Failed", [outcomes_of(point) or "no" for point in points]


def _words(words: tuple[str, ...]) -> str | None:
    return "; ".join(plain(word, MAX_NAME) for word in words) or None

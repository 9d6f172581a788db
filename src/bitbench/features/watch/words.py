"""The page of a study that is running: how far it is, what is decided, what is still open.

Light, as it is loaded every few seconds by a browser that may share the machine with what is measured: no script, no
chart.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from bitbench.analysis.results.summary import AgainstBaseline, Ranking, RankingEntry, StudySummary
from bitbench.reports.charts.figure import DARK, LIGHT, figure_colours_css
from bitbench.reports.document.words import plain_words
from bitbench.reports.labels import Labels
from bitbench.util.units import show_duration


@dataclass(frozen=True)
class RunProgress:
    """`trials_planned` is the least that is asked for; None where a budget decides. `remaining_s`: None, unknown."""

    trials_done: int = 0
    trials_planned: int | None = None
    remaining_s: float | None = None
    activity: str = "preparing"
    ended: str | None = None  # one sentence; None while it runs

    @property
    def headline(self) -> str:
        """`12 of 36 trials, about 2 min left`"""
        if self.ended is not None:
            return self.ended
        planned = f" of {self.trials_planned:,}" if self.trials_planned else ""
        left = "" if self.remaining_s is None else f", about {show_duration(self.remaining_s)} left"
        return f"{self.trials_done:,}{planned} trials{left}"


@dataclass(frozen=True)
class Questions:
    """Those of one workload."""

    workload: str
    decided: str
    still_open: str


REFRESH_S = 5
NONE = "–"


def watch_page_questions(summary: StudySummary) -> tuple[Questions, ...]:
    """Sort them by what may be claimed of each config after the blocks that are complete."""
    labels = Labels.of(summary)
    return tuple(_questions(ranking, labels) for ranking in summary.rankings)


def live_page(name: str, progress: RunProgress, rows: tuple[Questions, ...], *, has_report: bool) -> str:
    """Write the page. Nothing of a study is HTML in it: the template escapes every string."""
    template, style = _template()
    return template.render(
        name=plain_words(name),
        progress=progress,
        rows=rows,
        has_report=has_report,
        refresh_s=None if progress.ended else REFRESH_S,
        style=style,
    )


@cache
def _template() -> tuple[Template, Markup]:
    """Read once: a page is made before each trial."""
    loader = ChoiceLoader([PackageLoader("bitbench.features.watch"), PackageLoader("bitbench.reports.document")])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    style = environment.get_template("page.css").render(light=figure_colours_css(LIGHT), dark=figure_colours_css(DARK))
    return environment.get_template("live.html"), Markup(style)


def _questions(ranking: Ranking, labels: Labels) -> Questions:
    compared = [entry for entry in ranking.entries if entry.config != ranking.baseline]
    still_open = ", ".join(labels[entry.config] for entry in compared if not _is_decided(entry))
    return Questions(plain_words(ranking.workload), "; ".join(_decided(ranking, labels)) or NONE, still_open or NONE)


def _decided(ranking: Ranking, labels: Labels) -> Iterator[str]:
    """`quick is faster than steady (1.31×)`"""
    for entry in ranking.entries:
        if _is_decided(entry) and ranking.baseline is not None:
            than = "to" if entry.against_baseline is AgainstBaseline.EQUAL else "than"
            ratio = f" ({entry.ratio_to_baseline.value:.2f}×)" if entry.ratio_to_baseline else ""
            claim = f"{labels[entry.config]} is {entry.against_baseline} {than} {labels[ranking.baseline]}"
            yield f"{claim}{ratio}"


def _is_decided(entry: RankingEntry) -> bool:
    return entry.against_baseline not in (None, AgainstBaseline.UNDECIDED)

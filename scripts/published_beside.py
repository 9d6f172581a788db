"""Which differences of a study are real, and what its configs weigh, lose and run on. See `published_tables`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from published_studies import MOST_COLUMNS

from bitbench.analysis.results.summary import (
    AgainstBaseline,
    ConfigSummary,
    Ranking,
    StudySummary,
)
from bitbench.records.trial import Outcome
from bitbench.reports.document.markdown import render_markdown_phrase, render_markdown_table
from bitbench.reports.document.model import Name, Phrase, Quantity, Table, Unit
from bitbench.reports.document.numbers import make_spread, to_quantity
from bitbench.reports.document.words import (
    ColumnOf,
    Words,
    build_table,
    format_count,
    format_list,
    join_phrases,
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


def write_beside(_: str, report: StudyReport) -> Iterator[str]:
    """Yield which differences of a study are real, and what each config weighs, loses and runs on."""
    summary = report.summary
    labels = Labels.of(summary)
    rankings = [
        (part, ranking) for part, ranking in ranked.iter_rankings(summary) if ranking.entries
    ]
    yield real_differences(rankings, labels)
    yield render_markdown_table(claims_table(rankings))
    if not summary.models:
        yield render_markdown_table(ratio_table(rankings, labels))
    yield render_markdown_table(config_table(summary, labels))
    yield quality_sentence(summary, labels)


RankingPlace = tuple[StudySummary, Ranking]


@dataclass(frozen=True)
class PairCount:
    """Of the pairs of configs of a workload, how many are significantly different."""

    told_apart: int
    pairs: int

    @property
    def text(self) -> str:
        return f"{self.told_apart} of {self.pairs}"

    @classmethod
    def of(cls, ranking: Ranking) -> "PairCount":
        """Count the pairs that the ranking orders."""
        in_ranks = [entry for entry in ranking.entries if entry.rank_low is not None]
        open_sides = sum(len(entry.undecided_with) for entry in in_ranks)  # each open pair has two
        return cls(count_pairs(len(in_ranks)) - open_sides // 2, count_pairs(len(ranking.entries)))

    @classmethod
    def of_all(cls, rankings: Iterable[Ranking]) -> "PairCount":
        """Add up the pairs of several rankings."""
        counts = [cls.of(ranking) for ranking in rankings]
        return cls(sum(own.told_apart for own in counts), sum(own.pairs for own in counts))


def count_pairs(things: int) -> int:
    """Return how many pairs there are."""
    return things * (things - 1) // 2


def real_differences(rankings: Sequence[RankingPlace], labels: Labels) -> str:
    """Say how many differences are significant, and which configs are faster than the baseline."""
    counted = PairCount.of_all(ranking for _, ranking in rankings)
    places: dict[str, list[str]] = {}
    for _, ranking in rankings:
        for entry in ranking.entries:
            if entry.against_baseline is AgainstBaseline.FASTER:
                places.setdefault(labels.name(entry.config), []).append(ranking.workload)
    faster = [
        say(Name(config), " on ", format_list(list_names(where)))
        for config, where in places.items()
    ]
    said = render_markdown_phrase(join_phrases(faster, ", ")) if faster else "none"
    workloads = format_count(len({ranking.workload for _, ranking in rankings}), "workload")
    return (
        f"**Significantly different: {counted.text} pairs on {workloads}.** "
        f"Significantly faster than the baseline: {said}."
    )


def ranking_title(ranking: Ranking) -> Phrase:
    """Return the workload, with the model where a study has several."""
    return (
        say(Name(ranking.workload), ", ", Name(ranking.model))
        if ranking.model
        else say(Name(ranking.workload))
    )


def starts_range(part: StudySummary, ranking: Ranking) -> str:
    """Return `3`, or `2–3` where configs differ."""
    estimates = [ranked.find_ranked_estimate(part, ranking, entry) for entry in ranking.entries]
    starts = sorted({estimate.basis.starts for estimate in estimates if estimate.basis})
    return "–".join(str(number) for number in dict.fromkeys((starts[0], starts[-1])))


def claims_table(rankings: Sequence[RankingPlace]) -> Table:
    """Return what may be claimed on each workload."""
    return build_table(
        rankings,
        make_words_column("Workload", lambda place: ranking_title(place[1])),
        make_words_column("Starts", lambda place: starts_range(*place)),
        make_words_column("Pairs told apart", lambda place: PairCount.of(place[1]).text),
        claim_column("Faster than the baseline", AgainstBaseline.FASTER),
        claim_column("Slower", AgainstBaseline.SLOWER),
        claim_column("Undecided", AgainstBaseline.UNDECIDED),
        make_words_column("May be the best", lambda place: str(count_possible_bests(place[1]))),
    )


def claim_column(title: str, claim: AgainstBaseline) -> ColumnOf[RankingPlace]:
    """Return a column that counts the configs of which this is claimed."""
    return make_words_column(title, lambda place: str(claimed(place[1], claim)))


def count_possible_bests(ranking: Ranking) -> int:
    """Return how many configs may be the best: all where nothing is known."""
    return len(ranked.list_possible_bests(ranking)) or len(ranking.entries)


def claimed(ranking: Ranking, claim: AgainstBaseline) -> int:
    """Count the configs of which this is claimed."""
    return sum(entry.against_baseline is claim for entry in ranking.entries)


def ratio_table(rankings: Sequence[RankingPlace], labels: Labels) -> Table:
    """Return the ratio to the baseline of every config, a column for each workload."""
    shown = [ranking for _, ranking in rankings][: MOST_COLUMNS - 1]
    configs = dict.fromkeys(entry.config for ranking in shown for entry in ranking.entries)
    return build_table(
        configs,
        make_words_column("Ratio to the baseline", lambda config: Name(labels.name(config))),
        *map(ratio_on_workload, shown),
    )


def ratio_on_workload(ranking: Ranking) -> ColumnOf[Config]:
    """Return the column of one workload."""

    def ratio(config: Config) -> Words:
        return ranked.format_versus_baseline(ranking, ranked.find_ranked_entry(ranking, config))

    return make_ratio_column(Name(ranking.workload), ratio)


def config_table(summary: StudySummary, labels: Labels) -> Table:
    """Return what each config with a result weighs, takes, loses and runs on."""
    qualities = {row.config: row for row in summary.quality}
    key = quality_key(summary)
    measured = {entry.config for ranking in summary.rankings for entry in ranking.entries}

    def quality(row: ConfigSummary) -> Quantity | str | None:
        measured_quality = qualities.get(row.config)
        if measured_quality is None or key is None:
            return "random weights" if row.random_weights else "not measured"
        if measured_quality.baseline == row.config:
            return "baseline"
        estimate = measured_quality.estimates.get(key)
        if estimate is None and measured_quality.outcome is Outcome.OK:
            return "no baseline"
        return (
            to_quantity(estimate, summary.quality_definitions[key])
            or measured_quality.outcome.value
        )

    def perplexity(row: ConfigSummary) -> Quantity | None:
        estimates = qualities[row.config].estimates if row.config in qualities else {}
        return to_quantity(estimates.get("perplexity"), summary.quality_definitions["perplexity"])

    title = summary.quality_definitions[key].label if key else "Quality"
    unit = summary.quality_definitions[key].unit if key else Unit.NONE
    columns: list[ColumnOf[ConfigSummary]] = [
        make_words_column("Config", lambda row: Name(labels.name(row.config))),
        make_number_column(
            "Weights on disk", Unit.BYTES, lambda row: row.memory.weight_bytes_stored
        ),
        make_number_column(
            "Memory peak", Unit.BYTES, lambda row: make_spread(row.memory.peak, Unit.BYTES)
        ),
        make_number_column(title, unit, quality),
    ]
    if key not in (None, "perplexity"):
        columns.append(make_number_column("Perplexity", Unit.NONE, perplexity))
    columns.append(make_words_column("Kernel", kernels_of))
    return build_table([row for row in summary.configs if row.config in measured], *columns)


def quality_key(summary: StudySummary) -> str | None:
    """Return the first figure of quality that any config has."""
    keys = ("kl_mean", "perplexity_rise", "perplexity")
    known = {name for row in summary.quality for name in row.estimates}
    return next((key for key in keys if key in known), None)


def kernels_of(config: ConfigSummary) -> str:
    """Return the kernels that decide how fast a product is, in the engine's names."""
    chosen = [choice for choices in config.kernel_choices for choice in choices]
    decisive = [choice for choice in chosen if choice.path is not None]
    names = [f"{choice.kernel} ({choice.path.value})" for choice in decisive if choice.path]
    return "; ".join(dict.fromkeys(names)) or "; ".join(config.kernels) or "the engine does not say"


def quality_sentence(summary: StudySummary, labels: Labels) -> str:
    """Say what is known of quality."""
    if not summary.quality:
        random = [row for row in summary.configs if row.random_weights]
        if random:
            return "The weights are random: they have a speed and a size, and no quality."
        return "Quality was not measured in this study."
    flagged = [labels.name(row.config) for row in summary.quality if row.flagged]
    said = render_markdown_phrase(format_list(list_names(flagged))) if flagged else "none"
    return f"Flagged because of their quality: {said}."

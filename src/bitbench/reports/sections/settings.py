"""What each setting of an engine changes, where the same weights run with several."""

from collections.abc import Callable

from bitbench.analysis.results.crossover import CrossoverAxis
from bitbench.analysis.results.summary import SettingSummary, StudySummary
from bitbench.reports.document.model import Name, Quantity, Section, Unit
from bitbench.reports.document.tables import ColumnOf, number_column, table, words_column
from bitbench.reports.document.text import MAX_NAME
from bitbench.reports.document.words import say, small_print
from bitbench.reports.labels import Labels
from bitbench.reports.sections.crossover import verdict

PER_TOKENS = 1_000  # of context: slopes are nanoseconds per token, which nobody can picture
KV_MEANING = "KV/token: keys and values of one token in all layers, as the engine says."
SLOPE_MEANING = (
    f"Slope: what a token takes longer for each {PER_TOKENS:,} tokens of context; "
    "a line through the lengths of each start."
)
ACCEPTED_MEANING = "Accepted: tokens of a step that begins with a draft, mean."
PAYS_MEANING = "Against the baseline: at which length of the input it pays."


def settings_section(summary: StudySummary) -> Section | None:
    """None where no weights run with several settings."""
    if not summary.settings:
        return None
    labels = Labels.of(summary, MAX_NAME)
    verdicts = {
        crossover.config: verdict(crossover)
        for crossover in summary.crossovers
        if crossover.axis is CrossoverAxis.INPUT_TOKENS
    }
    baselines = {crossover.baseline for crossover in summary.crossovers}

    def pays(setting: SettingSummary) -> str | None:
        return "the baseline" if setting.config in baselines else verdicts.get(setting.config)

    config: ColumnOf[SettingSummary] = words_column("Config", lambda setting: Name(labels[setting.config]))
    figures = table(
        summary.settings,
        config,
        number_column("KV/token", Unit.BYTES, lambda setting: setting.kv_bytes_per_token),
        number_column("Slope", Unit.SECONDS, _slope, intervals_from=0),
        number_column("Accepted", Unit.NONE, lambda setting: setting.acceptance_length),
        words_column("Against the baseline", pays),
        drop_empty=True,
    )
    meanings: dict[str, Callable[[SettingSummary], object]] = {
        KV_MEANING: lambda setting: setting.kv_bytes_per_token,
        SLOPE_MEANING: lambda setting: setting.step_slope,
        ACCEPTED_MEANING: lambda setting: setting.acceptance_length,
        PAYS_MEANING: pays,
    }
    shown = [words for words, of in meanings.items() if any(of(setting) is not None for setting in summary.settings)]
    return Section(say("What each setting changes"), (figures, small_print(" ".join(shown))), in_terminal=True)


def _slope(setting: SettingSummary) -> Quantity | None:
    if setting.step_slope is None:
        return None
    slope = setting.step_slope
    low, high = (None if end is None else end * PER_TOKENS for end in (slope.low, slope.high))
    return Quantity(slope.value * PER_TOKENS, Unit.SECONDS, low, high)

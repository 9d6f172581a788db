"""One workload, one row per config: every trial, the mean with its interval, the outliers."""

from bitbench.analysis.results.summary import PointSummary, Ranking, StudySummary
from bitbench.records.trial import Outcome
from bitbench.reports.charts import figure as fig
from bitbench.reports.charts.absent import absent_from
from bitbench.reports.charts.layer import channel, value
from bitbench.reports.document.numbers import Scale, scale_for, shown
from bitbench.reports.document.text import MAX_NAME, plain
from bitbench.reports.labels import Labels
from bitbench.reports.quantities import estimated, starts_and_trials, unit_of
from bitbench.reports.sections.ranked import entry_of, has_result, in_order, places, rank, ratio_to_baseline
from bitbench.util.units import UNKNOWN

STEP = 42  # pixels of a row: its name, and its marks below
NAME_UP, MARKS_DOWN = -9, 10


def trials_figure(summary: StudySummary, ranking: Ranking, labels: Labels) -> fig.Figure | None:
    """None where no config has a result."""
    points = [point for point in in_order(summary, ranking) if has_result(summary, point)]
    if not points:
        return None
    definition = summary.definitions[ranking.metric]
    scale = scale_for(unit_of(definition), [point.metrics[ranking.metric].value for point in points])
    rows: list[fig.Row] = []
    for point in points:
        rows += [_mean_row(summary, ranking, point, scale, labels), *_trial_rows(ranking, point, scale, labels)]
    axis = fig.axis_for(fig.axis_title(definition, scale), fig.numbers(rows, "value", "value_low", "value_high"))
    about_trial = [
        *fig.tooltips(trial="Trial", config="Config"),
        channel("value:Q", title=f"{definition.label} ({scale.unit})", format=",.4~r"),
        *fig.tooltips(instance="Start", block="Block", note="Outcome"),
    ]
    about_mean = fig.tooltips(
        config="Config",
        shown=definition.label,
        rank="Rank",
        versus="vs. baseline",
        counts="Starts / trials",
    )
    means, trials = fig.where("datum.kind == 'mean'"), fig.where("datum.kind == 'trial'")
    x = axis.x("value")
    y = channel("config:N", sort=[labels[point.point.config] for point in points], axis=None)
    text = means.encode(y=y)
    layers = [
        means.where("datum.baseline").mark("rule", style="baseline").encode(x=x),
        trials.where("!datum.flagged")
        .mark("tick", style="trial", yOffset=MARKS_DOWN, thickness=1.5, size=13)
        .encode(x=x, y=y, tooltip=about_trial),
        means.where("isValid(datum.value_low)")
        .mark("rule", style="interval", yOffset=MARKS_DOWN, y2Offset=MARKS_DOWN)
        .encode(x=axis.x("value_low"), x2="value_high", y=y),
        means.mark("point", style="mean", yOffset=MARKS_DOWN, filled=True).encode(x=x, y=y, tooltip=about_mean),
        trials.where("datum.flagged")
        .mark("point", style="outlier", yOffset=MARKS_DOWN)
        .encode(x=x, y=y, tooltip=about_trial),
        text.mark("text", style="name", dy=NAME_UP).encode(text="heading:N", x=value(0)),
        text.mark("text", style="value", dy=NAME_UP).encode(text="shown:N", x=value("width")),
    ]
    flagged = any(row.get("flagged") for row in rows)
    caption = (
        "Dot and line: mean and interval; ticks: single trials; dashed: the baseline. The number before a name is its "
        "rank; tied configs share a range of ranks, and n = 1 has none.",
        absent_from(summary, {ranking.workload}, [point.point.config for point in points], labels),
        labels.shared,
        "Diamonds: trials flagged as outliers (still included in the means)." if flagged else "",
    )
    title = f"{ranking.workload}: {definition.name}"
    return fig.drawn(f"trials-{ranking.workload}", title, caption, layers, rows, height={"step": STEP})


def _mean_row(summary: StudySummary, ranking: Ranking, point: PointSummary, scale: Scale, labels: Labels) -> fig.Row:
    config, estimate = point.point.config, point.metrics[ranking.metric]
    entry, ratio = entry_of(ranking, config), ratio_to_baseline(ranking, config)
    figure = estimated(estimate, summary.definitions[ranking.metric])
    is_baseline = config == ranking.baseline
    return {
        "kind": "mean",
        "config": labels[config],
        "heading": f"{places(entry) if entry else UNKNOWN}   {labels[config]}",
        "rank": rank(entry) or UNKNOWN,
        **fig.place("value", figure, scale),
        "shown": shown(figure) if figure else UNKNOWN,
        "versus": "baseline" if is_baseline else shown(ratio) if ratio else UNKNOWN,
        "counts": starts_and_trials(estimate),
        "baseline": is_baseline,
    }


def _trial_rows(ranking: Ranking, point: PointSummary, scale: Scale, labels: Labels) -> list[fig.Row]:
    flagged = {outlier.trial_id for outlier in point.outliers if outlier.metric == ranking.metric}
    return [
        {
            "kind": "trial",
            "config": labels[point.point.config],
            "value": run.metrics[ranking.metric] / scale.factor,
            "trial": plain(run.trial_id, MAX_NAME),
            "instance": plain(run.instance_id, MAX_NAME),
            "block": run.block,
            "note": f"{run.outcome.value}, outlier" if run.trial_id in flagged else run.outcome.value,
            "flagged": run.trial_id in flagged,
        }
        for run in point.runs
        if run.outcome is Outcome.OK and ranking.metric in run.metrics
    ]

"""One workload, one row per contender: every trial, the mean with its interval, the outliers."""

import altair as alt

from bitbench.core.found.summary import CellSummary, Ranking, StudySummary
from bitbench.report.charts.figure import ROWS, Figure, Row, axis_for, axis_title, ends, numbers, specification
from bitbench.report.document.numbers import Scale, mean_and_interval
from bitbench.report.document.text import MAX_NAME, plain
from bitbench.report.labels import Labels
from bitbench.report.sections.answer import has_result
from bitbench.report.sections.workloads import column_scale, entry_of, in_order, rank_text, versus_baseline

STEP = 42  # pixels of a row: its name, and its marks below
NAME_UP, MARKS_DOWN = -9, 10


def trials_figure(summary: StudySummary, ranking: Ranking, labels: Labels) -> Figure | None:
    """None where no contender has a result."""
    cells = [cell for cell in in_order(summary, ranking) if has_result(summary, cell)]
    if not cells:
        return None
    definition, scale = summary.definitions[ranking.metric], column_scale(summary, cells, ranking.metric)
    rows = [row for cell in cells for row in _rows(ranking, cell, scale, labels)]
    values = numbers(rows, "value", "low", "high")
    axis = axis_for(axis_title(definition, scale), values)
    x = axis.x("value")
    y = alt.Y("contender:N", sort=[labels[cell.cell.contender] for cell in cells], axis=None)
    base = alt.Chart(alt.NamedData(name=ROWS))
    means, trials = base.transform_filter("datum.kind == 'mean'"), base.transform_filter("datum.kind == 'trial'")
    unit = f" ({scale.unit})"
    about_trial = [
        alt.Tooltip("trial:N", title="Trial"),
        alt.Tooltip("contender:N", title="Contender"),
        alt.Tooltip("value:Q", title=definition.label + unit, format=",.4~r"),
        alt.Tooltip("instance:N", title="Instance"),
        alt.Tooltip("block:Q", title="Block"),
        alt.Tooltip("note:N", title="Outcome"),
    ]
    about_mean = [
        alt.Tooltip("contender:N", title="Contender"),
        alt.Tooltip("shown:N", title=definition.label + unit),
        alt.Tooltip("rank:N", title="Rank"),
        alt.Tooltip("versus:N", title="vs. baseline"),
        alt.Tooltip("counts:N", title="Instances / trials"),
    ]
    text = means.encode(y=y)
    layers = [
        means.transform_filter("datum.baseline").mark_rule(style="baseline").encode(x=x),
        trials.transform_filter("!datum.flagged")
        .mark_tick(style="trial", yOffset=MARKS_DOWN, thickness=1.5, size=13)
        .encode(x=x, y=y, tooltip=about_trial),
        means.transform_filter("isValid(datum.low)")
        .mark_rule(style="interval", yOffset=MARKS_DOWN, y2Offset=MARKS_DOWN)
        .encode(x=axis.x("low"), x2="high:Q", y=y),
        means.mark_point(style="mean", yOffset=MARKS_DOWN, filled=True).encode(x=x, y=y, tooltip=about_mean),
        trials.transform_filter("datum.flagged")
        .mark_point(style="outlier", yOffset=MARKS_DOWN)
        .encode(x=x, y=y, tooltip=about_trial),
        text.mark_text(style="name", dy=NAME_UP).encode(text="heading:N", x=alt.value(0)),
        text.mark_text(style="value", dy=NAME_UP).encode(text="shown:N", x=alt.value("width")),
    ]
    title = f"{ranking.workload}: {definition.name}"
    flagged = any(row.get("flagged") for row in rows)
    caption = (
        "Dot and line: mean and interval; ticks: single trials; dashed: the baseline. The number before a name is its "
        f"rank; contenders that cannot be told apart share a range of ranks.{labels.in_words()}"
        + (" Diamonds: trials flagged as outliers, which are counted all the same." if flagged else "")
    )
    spec = specification(layers, height=alt.Step(STEP), title=title)
    return Figure(f"trials-{ranking.workload}", title, caption, spec, rows)


def _rows(ranking: Ranking, cell: CellSummary, scale: Scale, labels: Labels) -> list[Row]:
    estimate, entry = cell.metrics[ranking.metric], entry_of(ranking, cell)
    label = labels[cell.cell.contender]
    rank = rank_text(entry).removesuffix(" (tie)")
    flagged = {outlier.trial_id for outlier in cell.outliers if outlier.metric == ranking.metric}
    low, high = ends(estimate, scale)
    mean: Row = {
        "kind": "mean",
        "contender": label,
        "heading": f"{rank}   {label}",
        "rank": rank_text(entry),
        "value": estimate.mean / scale.factor,
        "low": low,
        "high": high,
        "shown": mean_and_interval(estimate, scale),
        "versus": versus_baseline(ranking, entry),
        "counts": f"{estimate.n_instances} / {estimate.n_trials}",
        "baseline": cell.cell.contender == ranking.baseline,
    }
    trials: list[Row] = [
        {
            "kind": "trial",
            "contender": label,
            "value": run.metrics[ranking.metric] / scale.factor,
            "trial": plain(run.trial_id, MAX_NAME),
            "instance": plain(run.instance_id, MAX_NAME),
            "block": run.block,
            "note": f"{run.outcome.value}, outlier" if run.trial_id in flagged else run.outcome.value,
            "flagged": run.trial_id in flagged,
        }
        for run in cell.runs
        if run.outcome.value == "ok" and ranking.metric in run.metrics
    ]
    return [mean, *trials]

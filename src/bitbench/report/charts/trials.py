"""One workload, one row per contender: every trial, the mean with its interval, the outliers."""

import altair as alt

from bitbench.core.found.summary import CellSummary, Ranking, StudySummary
from bitbench.core.recorded.trial import Outcome
from bitbench.ground.units import UNKNOWN
from bitbench.report.charts.figure import (
    ROWS,
    Figure,
    Row,
    axis_for,
    axis_title,
    caption_of,
    ends,
    estimate_text,
    numbers,
    scale_of,
    specification,
)
from bitbench.report.document.numbers import Scale, shown
from bitbench.report.document.text import MAX_NAME, plain
from bitbench.report.labels import Labels
from bitbench.report.sections.ranked import entry_of, has_result, in_order, rank, ratio_to_baseline

STEP = 42  # pixels of a row: its name, and its marks below
NAME_UP, MARKS_DOWN = -9, 10


def trials_figure(summary: StudySummary, ranking: Ranking, labels: Labels) -> Figure | None:
    """None where no contender has a result."""
    cells = [cell for cell in in_order(summary, ranking) if has_result(summary, cell)]
    if not cells:
        return None
    definition = summary.definitions[ranking.metric]
    scale = scale_of(definition, [cell.metrics[ranking.metric].mean for cell in cells])
    rows: list[Row] = []
    for cell in cells:
        rows += [_mean_row(summary, ranking, cell, scale, labels), *_trial_rows(ranking, cell, scale, labels)]
    values = numbers(rows, "value", "low", "high")
    axis = axis_for(axis_title(definition, scale), values)
    x = axis.x("value")
    y = alt.Y("contender:N", sort=[labels[cell.cell.contender] for cell in cells], axis=None)
    base = alt.Chart(alt.NamedData(name=ROWS))
    means, trials = base.transform_filter("datum.kind == 'mean'"), base.transform_filter("datum.kind == 'trial'")
    about_trial = [
        alt.Tooltip("trial:N", title="Trial"),
        alt.Tooltip("contender:N", title="Contender"),
        alt.Tooltip("value:Q", title=f"{definition.label} ({scale.unit})", format=",.4~r"),
        alt.Tooltip("instance:N", title="Instance"),
        alt.Tooltip("block:Q", title="Block"),
        alt.Tooltip("note:N", title="Outcome"),
    ]
    about_mean = [
        alt.Tooltip("contender:N", title="Contender"),
        alt.Tooltip("shown:N", title=definition.label),
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
    caption = caption_of(
        "Dot and line: mean and interval; ticks: single trials; dashed: the baseline. The number before a name is its "
        "rank; tied contenders share a range of ranks.",
        labels.shared,
        "Diamonds: trials flagged as outliers (still included in the means)." if flagged else "",
    )
    spec = specification(layers, height=alt.Step(STEP), title=title)
    return Figure(f"trials-{ranking.workload}", title, caption, spec, rows)


def _mean_row(summary: StudySummary, ranking: Ranking, cell: CellSummary, scale: Scale, labels: Labels) -> Row:
    contender, estimate = cell.cell.contender, cell.metrics[ranking.metric]
    entry, ratio = entry_of(ranking, contender), ratio_to_baseline(ranking, contender)
    places = (entry.rank_low, entry.rank_high) if entry else (UNKNOWN,)
    low, high = ends(estimate, scale)
    is_baseline = contender == ranking.baseline
    return {
        "kind": "mean",
        "contender": labels[contender],
        "heading": f"{'–'.join(str(place) for place in dict.fromkeys(places))}   {labels[contender]}",
        "rank": rank(entry) or UNKNOWN,
        "value": estimate.mean / scale.factor,
        "low": low,
        "high": high,
        "shown": estimate_text(estimate, summary.definitions[ranking.metric]),
        "versus": "baseline" if is_baseline else shown(ratio) if ratio else UNKNOWN,
        "counts": f"{estimate.n_instances} / {estimate.n_trials}",
        "baseline": is_baseline,
    }


def _trial_rows(ranking: Ranking, cell: CellSummary, scale: Scale, labels: Labels) -> list[Row]:
    flagged = {outlier.trial_id for outlier in cell.outliers if outlier.metric == ranking.metric}
    return [
        {
            "kind": "trial",
            "contender": labels[cell.cell.contender],
            "value": run.metrics[ranking.metric] / scale.factor,
            "trial": plain(run.trial_id, MAX_NAME),
            "instance": plain(run.instance_id, MAX_NAME),
            "block": run.block,
            "note": f"{run.outcome.value}, outlier" if run.trial_id in flagged else run.outcome.value,
            "flagged": run.trial_id in flagged,
        }
        for run in cell.runs
        if run.outcome is Outcome.OK and ranking.metric in run.metrics
    ]

"""Figures: what is in them, where the names stand, and who is on the front."""

import itertools
from xml.etree import ElementTree

import altair as alt
import pytest

from bitbench.analysis.results.summary import ConfigQuality, StudySummary
from bitbench.records.trial import Memory, Outcome
from bitbench.reports.charts.curves import (
    build_load_charts,
    group_by_load,
)
from bitbench.reports.charts.figure import (
    make_axis,
)
from bitbench.reports.charts.rows import (
    MOST_LANES,
    build_ratio_chart,
    build_ratio_rows_chart,
    make_ratio_row,
)
from bitbench.reports.charts.svg import render_svg
from bitbench.reports.charts.trade import build_trade_chart, is_pareto_better
from bitbench.reports.document.model import Figure, Quantity, Unit
from bitbench.reports.document.palette import (
    CSS_COLOURS,
    DARK,
    LIGHT,
    MOST_SERIES,
    make_vega_config,
)
from bitbench.reports.labels import CHOSEN, FLAGGED, Labels
from bitbench.study.plan import Config, Plan
from bitbench.study.study import Count, Measure
from bitbench.study.workload import BUILT_IN_WORKLOADS, Workload
from tests.support.eight_configs import eight_summary
from tests.support.synthetic import (
    demo_study,
    make_instance,
    make_plan,
    make_trial,
    speed_metrics,
    summarize,
)

TWO_STARTS = Measure(starts=Count(min=2, max=2), trials=Count(min=2, max=2))


@pytest.fixture(scope="module")
def demo() -> StudySummary:
    plan, trials, instances, _ = demo_study()
    return summarize(plan, trials, instances)


def labels_of(summary: StudySummary) -> Labels:
    return Labels(point.point.config for point in summary.points)


def shape(name: str, concurrency: int, input_tokens: int) -> Workload:
    return Workload(name=name, concurrency=concurrency, input_tokens=input_tokens, output_tokens=32)


def measured(plan: Plan, peaks: dict[str, int] | None = None) -> StudySummary:
    """Engines of which each is half as fast as the one before."""
    engines = [config.engine for config in plan.configs]
    trials, instances = [], []
    for point, block, index in itertools.product(plan.points, range(2), range(2)):
        workload = plan.study.workload(point.workload)
        speed = (
            1000.0 * workload.concurrency**0.7 / 2 ** engines.index(point.config.engine)
            + block
            + index
        )
        held = Memory(peak_bytes=(peaks or {}).get(point.config.engine, 2**30))
        trials.append(
            make_trial(point, block, index, metrics=speed_metrics(workload, speed), memory=held)
        )
    instances = [make_instance(config, block) for config in plan.configs for block in range(2)]
    return summarize(plan, trials, instances)


def test_what_all_share_is_said_once_and_no_two_labels_are_alike() -> None:
    names = [f"small/{recipe}" for recipe in ("bf16", "x" * 300, "x" * 300 + "y")]
    labels = Labels(Config(variant=name, engine="vllm") for name in names)
    shown = [labels[Config(variant=name, engine="vllm")] for name in names]
    assert shown[0] == "bf16"
    assert len(set(shown)) == 3
    assert max(map(len, shown)) < 60
    assert labels.shared == "Model: small. Engine: vllm."


def test_who_was_only_asked_for_quality_has_a_short_name_too(demo: StudySummary) -> None:
    configs = [Config(variant=f"small/{recipe}", engine="vllm") for recipe in ("bf16", "w8a8-rtn")]
    rows = tuple(ConfigQuality(config=one, baseline=None, outcome=Outcome.OK) for one in configs)
    labels = Labels.of(demo.model_copy(update={"points": (), "quality": rows}))
    assert [labels[one] for one in configs] == ["bf16", "w8a8-rtn"]
    assert labels.shared == "Model: small. Engine: vllm."


def arrow_places(figure: Figure) -> set[float]:
    """Where arrow heads may be drawn along x, by the marks of the figure."""
    marks = [
        layer
        for layer in figure.spec["layer"]
        if str(layer["mark"].get("shape", "")).startswith("triangle")
    ]
    return {layer["encoding"]["x"]["datum"] for layer in marks}


def test_an_interval_that_is_cut_off_has_an_arrow_head_and_a_sentence() -> None:
    wide = make_ratio_row("wide", "w", Quantity(1.35, Unit.RATIO, 0.14, 12.66))
    near = make_ratio_row("near", "w", Quantity(1.1, Unit.RATIO, 1.0, 1.2))
    cut = build_ratio_rows_chart("n", "t", ["Lines are intervals."], [wide, near], "ratio")
    assert "Arrow heads" in cut.caption
    low, high = sorted(arrow_places(cut))
    assert 0.14 < low < 1 < high < 12.66
    (row,) = [row for row in cut.rows if row["config"] == "wide"]
    assert row["end"] == high
    assert (
        "Arrow heads"
        not in build_ratio_rows_chart("n", "t", ["Lines are intervals."], [near], "ratio").caption
    )


def test_the_answers_figure_has_a_row_per_config_and_a_mark_per_workload(
    demo: StudySummary,
) -> None:
    quick, twin = (
        next(one.config for one in demo.configs if one.config.engine == name)
        for name in ("quick", "twin")
    )
    figure = build_ratio_chart(demo, Labels.of(demo).marked({quick: CHOSEN, twin: FLAGGED}))
    assert figure is not None
    assert list(dict.fromkeys(row["config"] for row in figure.rows)) == [
        "★ quick",
        "steady",
        "✗ twin",
    ]
    assert [row["workload"] for row in figure.rows][:2] == ["interactive", "medium_batch"]
    assert {row["shown"] for row in figure.rows if row["config"] == "steady"} == {"baseline"}
    assert "★ recommended; ✗ quality flagged" in figure.caption
    assert "broken (unsupported (2))" in figure.caption
    alt.LayerChart.from_dict(figure.spec)
    ElementTree.fromstring(render_svg(figure))


def test_many_configs_leave_room_for_the_first_screen() -> None:
    plan = make_plan(
        [f"c{number:02}" for number in range(30)],
        [shape("one", 1, 128), shape("two", 2, 128)],
        TWO_STARTS,
    )
    summary = measured(plan)
    slowest = summary.configs[-1].config
    figure = build_ratio_chart(summary, Labels.of(summary).marked({slowest: CHOSEN}))
    assert figure is not None
    names = list(dict.fromkeys(row["config"] for row in figure.rows))
    assert (len(names), names[0], names[-1]) == (MOST_LANES // 2, "c00", "★ c29")
    assert "Shown are 13 of 30 configs." in figure.caption


def test_without_a_result_there_is_no_figure() -> None:
    empty = summarize(make_plan(["a", "b"], [BUILT_IN_WORKLOADS["base"]]), [], [])
    assert build_load_charts(empty, labels_of(empty)) == []
    assert build_ratio_chart(empty, labels_of(empty)) is None
    assert build_trade_chart(empty, empty.rankings[0], labels_of(empty)) is None


def test_only_what_differs_in_one_thing_is_joined() -> None:
    workloads = [
        shape("a", 8, 128),
        shape("b", 1, 128),
        shape("c", 1, 4096),
        BUILT_IN_WORKLOADS["base"],
    ]
    assert [[one.name for one in group] for group in group_by_load(workloads)] == [["b", "a"]]


def test_latency_against_throughput_has_a_point_per_load() -> None:
    summary = measured(
        make_plan(["a", "b"], [shape("one", 1, 128), shape("eight", 8, 128)], TWO_STARTS)
    )
    (figure,) = build_load_charts(summary, labels_of(summary))
    alt.LayerChart.from_dict(figure.spec)  # raises where it is not as Vega-Lite's schema wants it
    assert [(row["series"], row["at"]) for row in figure.rows] == [
        ("a", "1"),
        ("a", "8"),
        ("b", "1"),
        ("b", "8"),
    ]
    ElementTree.fromstring(render_svg(figure))


def test_a_figure_is_drawn_the_same_after_others() -> None:
    """Vega counts clip paths through all drawings of a process."""
    summary = measured(
        make_plan(["a", "b"], [shape("one", 1, 128), shape("eight", 8, 128)], TWO_STARTS)
    )
    (figure,) = build_load_charts(summary, labels_of(summary))
    drawn = render_svg(figure)
    assert 'id="clip1"' in drawn
    assert render_svg(figure) == drawn


def test_with_eight_configs_every_line_has_its_name() -> None:
    summary = eight_summary()
    (figure,) = build_load_charts(summary, labels_of(summary))
    series = {row["series"] for row in figure.rows}
    assert len(series) == 8
    drawn = render_svg(figure)
    assert "output throughput (tok/s), more is better (log)" in drawn
    assert all(str(name) in drawn for name in series)
    alt.LayerChart.from_dict(figure.spec)


def test_who_is_missing_from_a_figure_is_named_below_it(demo: StudySummary) -> None:
    figure = build_ratio_chart(demo, labels_of(demo))
    assert figure is not None
    assert "Not shown: broken (unsupported (2)); refused (refused)." in figure.caption
    plan = make_plan(
        ["quick", "slow", "unmeasured"], [BUILT_IN_WORKLOADS["interactive"]], TWO_STARTS
    )
    summary = measured(plan, {"quick": 3 * 2**30, "slow": 2**30})
    without = tuple(
        one.model_copy(update={"memory": one.memory.model_copy(update={"peak_bytes": None})})
        if one.config.engine == "unmeasured"
        else one
        for one in summary.configs
    )
    changed = summary.model_copy(update={"configs": without})
    trade = build_trade_chart(changed, changed.rankings[0], labels_of(changed))
    assert trade is not None
    assert "Not shown: unmeasured (memory unknown)." in trade.caption


def test_fractions_of_a_mebibyte_do_not_look_like_a_gain() -> None:
    axis = make_axis("peak memory", [900.0, 900.2, 900.6], least_span=0.1)
    assert axis.share(900.6) - axis.share(900.0) < 0.01
    summary = eight_summary()
    alone = [point for point in summary.points if point.point.config.engine == "vllm"]
    of_vllm = summary.model_copy(update={"points": tuple(alone)})
    figure = build_trade_chart(of_vllm, of_vllm.rankings[0], labels_of(of_vllm))
    assert figure is not None
    low, high = figure.spec["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert high - low > 100  # MiB; the marks are within one


def test_lines_beyond_what_can_be_told_apart_are_left_out_but_not_the_baseline() -> None:
    engines = [f"e{number:02}" for number in range(MOST_SERIES + 4)]
    plan = make_plan(
        engines, [shape("one", 1, 128), shape("two", 2, 128)], TWO_STARTS, baseline=engines[-1]
    )
    summary = measured(plan)
    (figure,) = build_load_charts(summary, labels_of(summary))
    assert {row["series"] for row in figure.rows} == {*engines[: MOST_SERIES - 1], engines[-1]}
    assert f"Shown are {MOST_SERIES} of {len(engines)} configs" in figure.caption


def test_an_interval_far_beyond_all_means_does_not_take_the_figure() -> None:
    assert make_axis("x", [10.0, 20.0], [0.0, 5000.0]).high < 30
    wide = make_axis("x", [1.0, 1000.0], [1e-9])
    assert wide.logarithmic
    assert wide.low > 0.01


def test_who_is_worse_only_within_noise_stays_on_the_front() -> None:
    quick_large, slow_small = [(100, 95, 105), (-9, -9, -9)], [(50, 45, 55), (-1, -1, -1)]
    beaten, within_noise = [(40, 38, 42), (-2, -2, -2)], [(48, 40, 56), (-1, -1, -1)]
    configs = [quick_large, slow_small, beaten, within_noise]
    assert [own for own in configs if any(is_pareto_better(other, own) for other in configs)] == [
        beaten
    ]


def test_speed_against_memory() -> None:
    plan = make_plan(["quick", "slow", "slower"], [BUILT_IN_WORKLOADS["interactive"]], TWO_STARTS)
    summary = measured(plan, {"quick": 3 * 2**30, "slow": 2**30, "slower": 2 * 2**30})
    figure = build_trade_chart(summary, summary.rankings[0], labels_of(summary))
    assert figure is not None
    assert {row["config"]: row["front"] for row in figure.rows} == {
        "quick": True,
        "slow": True,
        "slower": False,
    }
    assert [row["x"] for row in figure.rows] == [3072, 1024, 2048]
    alt.LayerChart.from_dict(figure.spec)
    render_svg(figure)


def test_specifications_hold_no_colour_and_no_row(demo: StudySummary) -> None:
    """So that light, dark and print share them, and a name never stands in an expression."""
    figures: list[Figure | None] = [
        build_ratio_chart(demo, labels_of(demo)),
        build_trade_chart(demo, demo.rankings[0], labels_of(demo)),
    ]
    for figure in figures:
        assert figure is not None
        alt.LayerChart.from_dict(figure.spec)
        assert figure.spec["data"] == {"name": "rows"}
        assert "datasets" not in figure.spec
        assert "#" not in str(figure.spec)


def test_a_name_stands_in_no_expression() -> None:
    summary = eight_summary()
    (figure,) = build_load_charts(summary, labels_of(summary))
    filters = [
        step["filter"] for layer in figure.spec["layer"] for step in layer.get("transform", ())
    ]
    named = {str(row["series"]) for row in figure.rows if row.get("series")}
    assert [one for one in filters if not isinstance(one, str)]  # by a name, which is a value there
    assert not [
        one for one in filters if isinstance(one, str) and any(name in one for name in named)
    ]


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_every_colour_stands_out_from_its_paper(palette: dict[str, str]) -> None:
    assert set(palette) == set(CSS_COLOURS)
    paper = luminance(palette["paper"])
    for role, colour in palette.items():
        if role in ("paper", "faint"):
            continue
        least = 4.5 if role in ("ink", "soft") else 3.0
        light, dark = max(luminance(colour), paper), min(luminance(colour), paper)
        assert (light + 0.05) / (dark + 0.05) >= least, role
    assert make_vega_config(palette)["background"] == palette["paper"]

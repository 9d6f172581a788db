"""How many trials were rejected, and what a ratio is with them."""

import pytest

from bitbench.analysis.summarize import summarize
from bitbench.records.trial import Outcome, TrialRecord
from bitbench.reports.document.model import Quantity, Table
from bitbench.reports.sections.conditions import build_attempts_section
from bitbench.study.plan import Point
from bitbench.study.workload import Workload
from tests.support.synthetic import make_plan, make_records, make_trial, speed_metrics

WORKLOADS = [
    Workload(name=name, concurrency=1, input_tokens=8, output_tokens=10) for name in ("w", "other")
]
PLAN = make_plan(["base", "new"], WORKLOADS)
SPEEDS = {"base": 100.0, "new": 200.0}


def measured(point: Point, block: int, round_: int, **fields: object) -> TrialRecord:
    metrics = speed_metrics(
        WORKLOADS[0], SPEEDS[point.config.engine] * (1 + 0.01 * ((block + round_) % 3))
    )
    return make_trial(point, block, round_, **{"round": round_, "metrics": metrics, **fields})  # type: ignore[arg-type]


def study(rejected: int) -> list[TrialRecord]:
    """Three blocks of four rounds; in so many blocks a trial of the baseline on `w` was rejected and repeated."""
    trials = []
    for block in range(3):
        for round_ in range(4):
            for point in PLAN.points:
                if block < rejected and round_ == 0 and point == PLAN.points[0]:
                    late = {"id": f"late{block}", "outcome": Outcome.CLIENT_BOUND, "cause": "late"}
                    trials.append(
                        measured(
                            point, block, round_, **late, metrics=speed_metrics(WORKLOADS[0], 50.0)
                        )
                    )
                trials.append(measured(point, block, round_))
    return trials


def test_each_config_has_its_rejected_and_attempted_trials() -> None:
    base, new = summarize(make_records(PLAN, study(rejected=2))).rejections
    assert (base.attempted, base.rejected, base.ratios) == (26, 2, ())
    assert (new.attempted, new.rejected, new.ratios) == (24, 0, ())


def test_where_many_were_rejected_the_ratio_with_all_attempts_stands_beside_it() -> None:
    base, new = summarize(make_records(PLAN, study(rejected=3))).rejections
    assert (base.attempted, base.rejected, base.ratios) == (27, 3, ())
    (ratio,) = new.ratios  # on the other workload nothing was rejected
    assert ratio.workload == PLAN.points[0].workload
    assert ratio.counted is not None
    assert ratio.counted.value == pytest.approx(2.0)
    assert ratio.all_attempts.value == pytest.approx(
        2.0 * 2 ** (1 / 8), rel=0.01
    )  # half as fast in half a round of 4


def test_an_uncertain_time_to_first_token_enters_no_figure_and_meets_no_objective() -> None:
    uncertain = [
        trial.model_copy(update={"uncertain": ("ttft",)})
        if trial.point == PLAN.points[0]
        else trial
        for trial in study(rejected=0)
    ]
    summary = summarize(make_records(PLAN, uncertain))
    metrics = {point.point: point.metrics for point in summary.points}
    assert {"ttft_s", "input_throughput"}.isdisjoint(metrics[PLAN.points[0]])
    assert {"output_throughput", "tpot_s", "latency_s"} <= metrics[PLAN.points[0]].keys()
    assert "ttft_s" in metrics[PLAN.points[1]]


def test_the_report_counts_rejected_trials_and_puts_both_ratios_side_by_side() -> None:
    records = make_records(PLAN, study(rejected=3))
    section = build_attempts_section(summarize(records))
    assert section is not None
    counts, ratios = [block for block in section.blocks if isinstance(block, Table)]
    shown = [cell.value for cell in counts.rows[0].cells if isinstance(cell, Quantity)]
    assert shown == [27, 3]
    assert len(ratios.rows) == 1
    assert [isinstance(cell, Quantity) for cell in ratios.rows[0].cells] == [
        False,
        False,
        True,
        True,
    ]

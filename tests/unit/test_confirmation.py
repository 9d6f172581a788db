"""The chosen one, measured once more: what is quoted, and how far the choice and the confirmation are from truth."""

import pytest

from bitbench.analysis.recommend import recommend
from bitbench.analysis.results.recommendation import Limits
from bitbench.analysis.summarize import summarize
from bitbench.records.trial import TrialRecord
from bitbench.reports.answers.recommend import recommendation_document
from bitbench.reports.document.markdown import markdown
from bitbench.reports.study import study_document
from bitbench.study.plan import Point, Purpose
from bitbench.study.study import Measure
from tests.length import by_length
from tests.unit.confirmed_studies import assert_unbiased, confirmed_study
from tests.unit.synthetic import make_lock, make_plan, make_records, make_trial, speed_metrics
from tests.unit.test_compare import WORKLOADS

STUDIES = by_length(120, 1200)


def test_the_choice_looks_better_than_it_is_and_the_confirmation_does_not() -> None:
    assert_unbiased(STUDIES)


def test_a_line_from_before_is_of_the_selection() -> None:
    trial = make_trial(confirmed_study(1).plan.points[0], 0, 0)
    line = trial.model_dump(exclude={"purpose"})
    assert TrialRecord.model_validate(line).purpose is Purpose.SELECTION
    assert trial.counts
    assert not trial.model_copy(update={"purpose": Purpose.CONFIRMATION}).counts


def test_the_lead_quotes_the_confirmed_ratio_and_names_the_other() -> None:
    plan = make_plan(["plain", "quick", "slow"], WORKLOADS[:1], Measure(starts=3, trials=3), baseline="plain")
    speeds = {"plain": 100.0, "quick": 150.0, "slow": 90.0}

    def trial(point: Point, block: int, index: int, speed: float, purpose: Purpose) -> TrialRecord:
        metrics = speed_metrics(WORKLOADS[0], speed + block / 10 + index / 20)
        return make_trial(point, block, index, round=index, metrics=metrics, purpose=purpose)

    trials = [
        trial(point, block, index, speeds[point.config.engine], Purpose.SELECTION)
        for point in plan.points
        for block in range(3)
        for index in range(3)
    ]
    again = [
        trial(point, 3, index, {"plain": 100.0, "quick": 140.0}[point.config.engine], Purpose.CONFIRMATION)
        for point in plan.points[:2]
        for index in range(3)
    ]
    found = summarize(make_records(plan, [*trials, *again]))
    without = summarize(make_records(plan, trials))
    (ranking,) = found.rankings
    assert ranking.confirmed is not None
    assert ranking.confirmed.ratio.value == pytest.approx(1.4, abs=0.005)
    assert ranking.model_copy(update={"confirmed": None}) == without.rankings[0]
    assert [point.metrics for point in found.points] == [point.metrics for point in without.points]
    text = markdown(study_document(found, make_lock(plan)))
    assert "Confirmed by fresh starts after the choice; the blocks that chose it gave 1.50×." in text
    assert "1.40× (95" in text
    assert "Confirmed with fresh starts, `quick` on `interactive`: 1.399× [1.397, 1.400] the baseline" in text
    (choice,) = recommend(found, Limits()).choices
    fresh = choice.judged[0].confirmed_ratio
    assert fresh == ranking.confirmed.ratio
    said = markdown(recommendation_document(recommend(found, Limits())))
    assert (
        "the output throughput of the baseline `plain`; fresh starts after the choice gave 1.399× [1.397, 1.400]."
        in said
    )

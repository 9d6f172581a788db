"""The tour that a new user runs first: its true answer is known, and a busy machine must give it, too."""

from datetime import datetime
from pathlib import Path

import pytest

from bitbench.analysis.results.summary import AgainstBaseline, StudySummary
from bitbench.machine.workplace import Workplace, get_default_home
from bitbench.planning.plan import make_estimator, plan_study
from bitbench.records.folder import StudyFolder
from bitbench.records.trial import Outcome
from bitbench.reports.write import StudyReport
from tests.forked import bitbench_process

TOUR = Path(__file__).parents[2] / "examples" / "null-tour.yaml"


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    place = tmp_path_factory.mktemp("tour")
    done = bitbench_process("run", str(TOUR), "--into", "out", cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    return StudyFolder.existing(place / "out")


@pytest.fixture(scope="module")
def summary(tour: StudyFolder) -> StudySummary:
    return StudyReport(tour, get_default_home()).summary


def test_it_is_planned_for_less_than_half_of_half_a_minute() -> None:
    """A busy machine repeats trials, and everything between them takes longer."""
    at = Workplace()
    _, most_s = make_estimator(plan_study(TOUR, at), at).estimate_range_s()
    assert most_s < 15


def test_it_takes_half_a_minute(tour: StudyFolder) -> None:
    lock, trials = tour.lock(), tour.trials()
    assert lock is not None
    assert lock.created_at is not None
    ends = [
        datetime.fromisoformat(trial.started_at).timestamp() for trial in trials if trial.started_at
    ]
    repeated_s = sum(
        trial.duration_s or 0.0 for trial in trials if trial.outcome is Outcome.CLIENT_BOUND
    )
    took_s = max(ends) - datetime.fromisoformat(lock.created_at).timestamp() - repeated_s
    assert took_s < 45 * (1 + (lock.busy_cores or 0.0) / 2)  # two cores; and not two minutes


def test_every_point_is_accounted_for(tour: StudyFolder) -> None:
    trials = [trial for trial in tour.trials() if trial.kind == "measured"]
    by_engine = {engine: {t.outcome for t in trials if t.point.config.engine == engine} for engine in
                 ("steady", "twin", "quick", "hiccup", "broken")}  # fmt: skip
    assert by_engine.pop("broken") == {Outcome.CRASHED}
    assert all(
        outcomes <= {Outcome.OK, Outcome.CLIENT_BOUND} and Outcome.OK in outcomes
        for outcomes in by_engine.values()
    )
    report = (tour.report / "report.md").read_text()
    assert all(engine in report for engine in (*by_engine, "broken"))


def test_the_known_answer_comes_out(tour: StudyFolder, summary: StudySummary) -> None:
    for ranking in summary.rankings:
        against = {entry.config.engine: entry.against_baseline for entry in ranking.entries}
        assert against["quick"] is AgainstBaseline.FASTER
        assert against["twin"] is AgainstBaseline.UNDECIDED
        assert against["hiccup"] is AgainstBaseline.SLOWER
        ties = {
            entry.config.engine: {one.engine for one in entry.undecided_with}
            for entry in ranking.entries
        }
        assert ties["steady"] == {"twin"}
        assert ties["quick"] == set()
    assert "**Use `quick`.**" in (tour.report / "report.md").read_text()


def test_the_slow_trials_are_flagged(summary: StudySummary) -> None:
    flagged = {
        point.point.config.engine
        for point in summary.points
        if point.outliers and point.point.workload == "eight"
    }
    assert "hiccup" in flagged

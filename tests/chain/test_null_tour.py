"""The tour that a new user runs first: its true answer is known, and the report must give it."""

import subprocess
from pathlib import Path

import pytest

from bitbench.core.recorded.trial import Outcome
from bitbench.lab.study import Lab
from bitbench.store.folder import StudyFolder
from tests.chain.conftest import BITBENCH

TOUR = Path(__file__).parents[2] / "examples" / "null-tour.yaml"


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    place = tmp_path_factory.mktemp("tour")
    done = subprocess.run(
        [*BITBENCH, "run", str(TOUR), "--into", "out"],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return StudyFolder.existing(place / "out")


def test_it_is_planned_for_less_than_half_a_minute() -> None:
    lab = Lab()
    _, most_s = lab.estimator(lab.plan(TOUR)).range_s()
    assert most_s < 30


def test_every_cell_is_accounted_for(tour: StudyFolder) -> None:
    trials = [trial for trial in tour.trials() if trial.kind == "measured"]
    by_engine = {engine: {t.outcome for t in trials if t.cell.contender.engine == engine} for engine in
                 ("steady", "twin", "quick", "hiccup", "broken")}  # fmt: skip
    assert by_engine.pop("broken") == {Outcome.CRASHED}
    assert all(
        outcomes <= {Outcome.OK, Outcome.CLIENT_BOUND} and Outcome.OK in outcomes for outcomes in by_engine.values()
    )
    report = (tour.report / "report.md").read_text()
    assert all(engine in report for engine in (*by_engine, "broken"))

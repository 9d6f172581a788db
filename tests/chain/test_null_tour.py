"""The tour that a new user runs first: its true answer is known, and the report must give it."""

import subprocess
import time
from pathlib import Path

import pytest

from bitbench.core.found.summary import StudySummary
from bitbench.core.recorded.trial import Outcome
from bitbench.lab.study import Lab
from bitbench.store.folder import StudyFolder
from tests.chain.conftest import BITBENCH

TOUR = Path(__file__).parents[2] / "examples" / "null-tour.yaml"


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyFolder, StudySummary, float, str]:
    place = tmp_path_factory.mktemp("tour")
    started = time.monotonic()
    done = subprocess.run(
        [*BITBENCH, "run", str(TOUR), "--into", "out"],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    took = time.monotonic() - started
    assert done.returncode == 0, done.stdout + done.stderr
    folder = StudyFolder.existing(place / "out")
    return folder, Lab().summary(folder), took, (folder.report / "report.md").read_text()


def test_it_takes_less_than_half_a_minute(tour: tuple[StudyFolder, StudySummary, float, str]) -> None:
    assert tour[2] < 30


def test_every_cell_is_accounted_for(tour: tuple[StudyFolder, StudySummary, float, str]) -> None:
    folder = tour[0]
    trials = [trial for trial in folder.trials() if trial.kind == "measured"]
    by_engine = {engine: {t.outcome for t in trials if t.cell.contender.engine == engine} for engine in
                 ("steady", "twin", "quick", "hiccup", "broken")}  # fmt: skip
    assert by_engine.pop("broken") == {Outcome.CRASHED}
    assert all(
        outcomes <= {Outcome.OK, Outcome.CLIENT_BOUND} and Outcome.OK in outcomes for outcomes in by_engine.values()
    )

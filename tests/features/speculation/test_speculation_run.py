"""Drafts on null engines, from the study file to the report: acceptance, costs and gain are known beforehand."""

import pytest

from bitbench.features.speculation.computing import Speculation, Speculations
from bitbench.machine.workplace import get_default_home
from bitbench.records.folder import StudyFolder
from bitbench.reports.write import StudyReport
from tests.chain.conftest import run_study_file

# A draft of three gives 2.5 tokens for 1.6 steps, and to check it costs what four streams do: 1 + 3 × 0.2 steps. Long
# steps, so that a busy machine that stalls a process now and then does not change the figures.
FILE = """
name: null-drafts
engines:
  - engine: null
    args: {ttft: 10ms, tpot: 200ms, per_stream: 0.2, draft_tokens: [0, 3], draft_accepted: 1.5, draft_step: 1.6}
workloads:
  - {name: one, concurrency: 1, input_tokens: 16, output_tokens: 11}
  - {name: four, concurrency: 4, input_tokens: 16, output_tokens: 11}
measure: {starts: 3, trials: 1, metric: tpot}
"""
GAIN = 2.5 / 1.6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    return run_study_file(FILE, tmp_path_factory.mktemp("drafts"))


def test_the_known_figures_come_out(folder: StudyFolder) -> None:
    part = StudyReport(folder, get_default_home()).summary.part(Speculations)
    assert part is not None
    found: dict[str, Speculation] = {one.workload: one for one in part.rows}
    one = found["one"]
    assert (one.config.engine, one.plain and one.plain.engine) == (
        "null draft_tokens=3",
        "null draft_tokens=0",
    )
    assert one.acceptance_length is not None
    assert one.acceptance_length.value == pytest.approx(2.5)
    assert one.gain is not None
    assert one.gain.value == pytest.approx(GAIN, rel=0.05)


def test_the_report_says_that_it_pays(folder: StudyFolder) -> None:
    text = (folder.report / "report.md").read_text()
    assert "## What speculation gains" in text
    assert "Speculation on `one` is faster than the same without" in text

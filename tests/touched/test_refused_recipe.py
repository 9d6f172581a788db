"""What real vLLM cannot run is a result, in its own words.

Needs: bitbench env create vllm, quantize; bitbench model get smollm2-135m.
"""

from pathlib import Path

import pytest

from bitbench.records.folder import StudyFolder
from bitbench.records.trial import Outcome
from bitbench.util.errors import ExitCode
from tests.forked import bitbench_process

STUDY = """
name: refused
models: [smollm2-135m]
recipes: [w3a16-rtn]
engines: [{engine: vllm, args: {enforce-eager: true}}]
workloads: [{name: short, concurrency: 1, input_tokens: 32, output_tokens: 8}]
measure: {starts: 1, trials: 1}
"""


@pytest.mark.timeout(1800)
def test_what_the_engine_cannot_run_is_a_result_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY, encoding="utf-8")
    done = bitbench_process("run", "study.yaml", "--into", "out", cwd=tmp_path, timeout_s=1500)
    assert done.returncode == ExitCode.NOTHING_MEASURED, done.stderr
    folder = StudyFolder.existing(tmp_path / "out")
    assert {trial.outcome for trial in folder.trials()} == {Outcome.UNSUPPORTED}
    assert "uint3b4" in (folder.report / "report.md").read_text(encoding="utf-8")

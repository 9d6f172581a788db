"""Variants that a recipe makes run in a study like any other; what an engine cannot run is a result."""

import pytest

from bitbench.core.recorded.trial import KernelChoice, KernelPath, Outcome
from bitbench.store.folder import StudyFolder

pytestmark = pytest.mark.timeout(1800)  # seconds for one test, with what its fixtures run


@pytest.fixture
def folder(recipes_study: StudyFolder) -> StudyFolder:
    return recipes_study


def outcomes(folder: StudyFolder, contender: str) -> set[Outcome]:
    """But for trials in which a busy machine made our client late: they are repeated, and say nothing of the engine."""
    measured = [trial for trial in folder.trials() if trial.kind == "measured"]
    of_it = {trial.outcome for trial in measured if trial.cell.contender.name == f"smollm2-135m/{contender}"}
    return of_it - {Outcome.CLIENT_BOUND}


def test_what_runs_runs_with_the_kernel_that_was_meant(folder: StudyFolder) -> None:
    assert outcomes(folder, "bf16 @ vllm") == {Outcome.OK}
    assert outcomes(folder, "bf16 @ transformers") == {Outcome.OK}
    assert outcomes(folder, "w8a8-rtn @ vllm") == {Outcome.OK}
    quantized = [one.facts for one in folder.instances() if one.contender.name == "smollm2-135m/w8a8-rtn @ vllm"]
    assert all(any("CompressedTensorsW8A8Int8" in kernel for kernel in facts.kernels) for facts in quantized)
    chosen = KernelChoice(
        kind="CompressedTensorsW8A8Int8",
        kernel="CPUInt8ScaledMMLinearKernel",
        path=KernelPath.QUANTIZED,
        source="log",
    )
    assert {facts.kernel_choices for facts in quantized} == {(chosen,)}
    assert "kernel of CompressedTensorsW8A8Int8" in (folder.report / "report.md").read_text(encoding="utf-8")


def test_what_the_engine_cannot_run_is_a_result_in_its_own_words(folder: StudyFolder) -> None:
    assert outcomes(folder, "w8a16-rtn @ vllm") == {Outcome.UNSUPPORTED}
    report = (folder.report / "report.md").read_text(encoding="utf-8")
    assert "uint8b128" in report


def test_what_would_be_meaningless_is_refused_with_its_reason(folder: StudyFolder) -> None:
    assert outcomes(folder, "w8a8-rtn @ transformers") == set()
    report = (folder.report / "report.md").read_text(encoding="utf-8")
    assert "computes in bf16" in report

"""Variants that a recipe makes run in a study like any other."""

import json

import pytest

from bitbench.machine.workplace import get_default_home
from bitbench.quantize import variants
from bitbench.records.folder import StudyFolder
from bitbench.records.trial import KernelChoice, KernelPath, Outcome

pytestmark = pytest.mark.timeout(1800)  # seconds for one test, with what its fixtures run


@pytest.fixture
def folder(recipes_study: StudyFolder) -> StudyFolder:
    return recipes_study


def outcomes(folder: StudyFolder, config: str) -> set[Outcome]:
    """But for trials in which a busy machine made our client late: they are repeated, and say nothing of the engine."""
    measured = [trial for trial in folder.trials() if trial.kind == "measured"]
    of_it = {
        trial.outcome for trial in measured if trial.point.config.name == f"smollm2-135m/{config}"
    }
    return of_it - {Outcome.CLIENT_BOUND}


def test_what_runs_runs_with_the_kernel_that_was_meant(folder: StudyFolder) -> None:
    assert outcomes(folder, "bf16 @ vllm") == {Outcome.OK}
    assert outcomes(folder, "bf16 @ transformers") == {Outcome.OK}
    assert outcomes(folder, "w8a8-rtn @ vllm") == {Outcome.OK}
    quantized = [
        one.facts for one in folder.instances() if one.config.name == "smollm2-135m/w8a8-rtn @ vllm"
    ]
    assert all(
        any("CompressedTensorsW8A8Int8" in kernel for kernel in facts.kernels)
        for facts in quantized
    )
    chosen = KernelChoice(
        kind="CompressedTensorsW8A8Int8",
        kernel="CPUInt8ScaledMMLinearKernel",
        path=KernelPath.QUANTIZED,
        source="log",
    )
    assert {facts.kernel_choices for facts in quantized} == {(chosen,)}
    assert "kernel of CompressedTensorsW8A8Int8" in (folder.report / "report.md").read_text(
        encoding="utf-8"
    )


def test_what_was_made_is_what_the_recipe_says(folder: StudyFolder) -> None:
    made = variants.get_variant("smollm2-135m--w8a8-rtn--", get_default_home())
    manifest = made.manifest
    assert manifest.bits_per_weight.linear_layers == pytest.approx(8.0, abs=0.06)
    assert manifest.calibration is None
    assert manifest.work.peak_memory_bytes
    config = json.loads((made.path / "config.json").read_text(encoding="utf-8"))[
        "quantization_config"
    ]
    assert (config["format"], config["ignore"]) == ("int-quantized", ["lm_head"])
    assert (made.path / "tokenizer.json").exists()


def test_what_would_be_meaningless_is_refused_with_its_reason(folder: StudyFolder) -> None:
    assert outcomes(folder, "w8a8-rtn @ transformers") == set()
    report = (folder.report / "report.md").read_text(encoding="utf-8")
    assert "computes in bf16" in report

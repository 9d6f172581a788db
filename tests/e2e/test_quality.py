"""What compression costs in quality, with real vLLM and transformers: against a plain computation, against itself, and
with a layer that was damaged on purpose. Four bits are in tests/touched, on vLLM in tests/slow."""

import json
import math
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bitbench.analysis.divergence import divergence, scores_of
from bitbench.analysis.results.summary import ConfigQuality, StudySummary
from bitbench.engines.environments.installed import python_of
from bitbench.measure.workplace import default_home
from bitbench.records.folder import StudyFolder
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import Outcome
from bitbench.reports.write import report_summary
from tests.e2e.conftest import WINDOWS

pytestmark = pytest.mark.timeout(1800)  # seconds for one test, with what its fixtures run

MODEL = "smollm2-135m"
AGREES = 0.001
DAMAGED_LAYER = "model.layers.10."
BF16_EXPONENT = 0x80  # added to the 16 bits of a number it doubles it

PLAIN = """
import json, sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=getattr(torch, sys.argv[3])).eval()
windows = json.load(open(sys.argv[2]))["windows"]
with torch.inference_mode():
    losses = [float(model(ids, labels=ids).loss) for ids in (torch.tensor([one]) for one in windows)]
print(sum(losses) / len(losses))
"""


@pytest.fixture(scope="module")
def summary(recipes_study: StudyFolder) -> StudySummary:
    return report_summary(recipes_study, default_home())


@pytest.fixture(scope="module")
def damaged(recipes_study: StudyFolder, tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    """On transformers: W8A8 with doubled scales in one layer; all else is as in the other study."""
    del recipes_study  # it has made the variant
    place = tmp_path_factory.mktemp("damaged")
    home, there = place / "home", default_home()
    (home / "variants").mkdir(parents=True)
    for name in ("envs", "models"):
        (home / name).symlink_to(there / name)
    (variant,) = (there / "variants").glob(f"{MODEL}--w8a8-rtn--*")
    shutil.copytree(variant, home / "variants" / variant.name)
    (weights,) = (home / "variants" / variant.name).rglob("*.safetensors")
    double_scales(weights, DAMAGED_LAYER)
    command = [sys.executable, "-m", "bitbench", "quality", MODEL, "--recipes", "w8a8-rtn"]
    subprocess.run(
        [*command, "--windows", str(WINDOWS), "--window-tokens", "128", "--no-answers", "--into", "out"],
        cwd=place,
        check=True,
        timeout=600,
        env={**os.environ, "BITBENCH_HOME": str(home)},
    )
    return StudyFolder.existing(place / "out")


def double_scales(weights: Path, layer: str) -> None:
    content = bytearray(weights.read_bytes())
    (length,) = struct.unpack("<Q", content[:8])
    doubled = 0
    for name, tensor in json.loads(content[8 : 8 + length]).items():
        if name.startswith(layer) and name.endswith("weight_scale"):
            assert tensor["dtype"] == "BF16"
            first, last = (8 + length + offset for offset in tensor["data_offsets"])
            numbers = np.frombuffer(bytes(content[first:last]), dtype="<u2") + np.uint16(BF16_EXPONENT)
            content[first:last] = numbers.astype("<u2").tobytes()
            doubled += 1
    assert doubled == 7, "the layer has seven linear parts"
    weights.write_bytes(bytes(content))


def quality(summary: StudySummary, name: str) -> ConfigQuality:
    return next(one for one in summary.quality if one.name == f"{MODEL}/{name}")


def record(folder: StudyFolder, name: str) -> QualityRecord:
    return next(one for one in folder.quality_records() if one.config.name == f"{MODEL}/{name}")


def test_perplexity_of_both_engines_is_that_of_a_plain_computation(
    recipes_study: StudyFolder, summary: StudySummary
) -> None:
    """In the type that both computed in, which depends on the processor."""
    home, lock = default_home(), recipes_study.lock()
    assert lock is not None
    (dtype,) = {
        lock.plan.chosen_dtypes.get(one, "bfloat16") for one in lock.plan.configs if one.variant == f"{MODEL}/bf16"
    }
    done = subprocess.run(
        [python_of("transformers", home), "-I", "-c", PLAIN, home / "models" / MODEL,
         recipes_study.quality / f"windows-{MODEL}.json", dtype],
        check=True, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    plain = math.exp(float(done.stdout))
    for engine in ("transformers", "vllm"):
        found = quality(summary, f"bf16 @ {engine}")
        assert found.tokens == WINDOWS * 127
        assert found.estimates["perplexity"].value == pytest.approx(plain, rel=AGREES), engine


def test_quality_is_measured_once_for_each_config_also_where_speed_is_refused(recipes_study: StudyFolder) -> None:
    names = [one.config.name for one in recipes_study.quality_records() if one.outcome is Outcome.OK]
    assert len(names) == len(set(names))
    expected = {f"{recipe} @ {engine}" for recipe in ("bf16", "w8a8-rtn") for engine in ("vllm", "transformers")}
    assert {f"{MODEL}/{name}" for name in expected} == set(names)


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_eight_bits_diverge_little(summary: StudySummary, engine: str) -> None:
    assert_diverges_little(summary, f"w8a8-rtn @ {engine}", f"bf16 @ {engine}")


def assert_diverges_little(summary: StudySummary, name: str, baseline: str) -> ConfigQuality:
    found = quality(summary, name)
    assert not found.flagged
    assert 0.005 < found.estimates["kl_mean"].value < 0.1
    assert_estimated(found, quality(summary, baseline))
    return found


def assert_diverges_much(summary: StudySummary, name: str, baseline: str) -> ConfigQuality:
    found = quality(summary, name)
    assert found.flagged
    assert found.estimates["kl_mean"].value > 0.1
    assert_estimated(found, quality(summary, baseline))
    return found


def assert_estimated(found: ConfigQuality, baseline: ConfigQuality) -> None:
    assert found.baseline == baseline.config
    for estimate in found.estimates.values():
        assert estimate.interval is not None
        assert estimate.interval.low < estimate.value < estimate.interval.high


def test_a_variant_has_no_divergence_from_itself_in_another_start(
    recipes_study: StudyFolder, damaged: StudyFolder
) -> None:
    one, other = (record(folder, "bf16 @ transformers") for folder in (recipes_study, damaged))
    assert one.corpus == other.corpus
    first, second = scores_of(recipes_study.scores_of(one)), scores_of(damaged.scores_of(other))
    assert divergence(first, second).max() == 0.0
    assert (first.logprob == second.logprob).all()


def test_a_damaged_layer_is_flagged(damaged: StudyFolder) -> None:
    found = quality(report_summary(damaged, default_home()), "w8a8-rtn @ transformers")
    assert found.flagged
    assert "beyond the limit" in (found.reason or "")
    assert "flagged" in quality_section(damaged)


def test_the_report_has_speed_memory_and_quality_side_by_side(recipes_study: StudyFolder) -> None:
    section = quality_section(recipes_study)
    header = next(line for line in section.splitlines() if line.startswith("| Config"))
    for column in ("Output, short (tok/s)", "Weights (MiB)", "Perplexity", "Rise", "KL mean", "Same top token"):
        assert column in header
    assert "### Answers side by side" in section


def quality_section(folder: StudyFolder) -> str:
    report = (folder.report / "report.md").read_text(encoding="utf-8")
    return report.partition("## Quality")[2].partition("\n## ")[0]

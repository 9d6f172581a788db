"""What eight and four bits cost in quality on real transformers, against itself in another start, and with a layer that
was damaged on purpose; on vLLM: tests/slow/test_quality_vllm.py.

Needs: bitbench env create transformers, quantize; bitbench model get smollm2-135m.
"""

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bitbench.analysis.divergence import divergence, make_scores
from bitbench.machine.workplace import get_default_home
from bitbench.records.folder import StudyFolder
from bitbench.records.quality import QualityRecord
from bitbench.reports.write import StudyReport
from tests.e2e.conftest import WINDOWS
from tests.e2e.test_quality import MODEL, quality, quality_section
from tests.slow.test_quality_vllm import assert_fewer_bits_diverge_more, measured

pytestmark = pytest.mark.timeout(1800)  # seconds for one test, with what its fixtures run

DAMAGED_LAYER = "model.layers.10."
BF16_EXPONENT = 0x80  # added to the 16 bits of a number it doubles it


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    return measured("transformers", tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def damaged(whole: StudyFolder, tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    """W8A8 with doubled scales in one layer; all else is as in the other study."""
    del whole  # it has made the variant
    place = tmp_path_factory.mktemp("damaged")
    home, there = place / "home", get_default_home()
    (home / "variants").mkdir(parents=True)
    for name in ("envs", "models"):
        (home / name).symlink_to(there / name)
    (variant,) = (there / "variants").glob(f"{MODEL}--w8a8-rtn--*")
    shutil.copytree(variant, home / "variants" / variant.name)
    (weights,) = (home / "variants" / variant.name).rglob("*.safetensors")
    double_scales(weights, DAMAGED_LAYER)
    command = [sys.executable, "-m", "bitbench", "quality", MODEL, "--recipes", "w8a8-rtn"]
    subprocess.run(
        [
            *command,
            "--windows",
            str(WINDOWS),
            "--window-tokens",
            "128",
            "--no-answers",
            "--into",
            "out",
        ],
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
            numbers = np.frombuffer(bytes(content[first:last]), dtype="<u2") + np.uint16(
                BF16_EXPONENT
            )
            content[first:last] = numbers.astype("<u2").tobytes()
            doubled += 1
    assert doubled == 7, "the layer has seven linear parts"
    weights.write_bytes(bytes(content))


def record(folder: StudyFolder, name: str) -> QualityRecord:
    return next(
        found for found in folder.read_quality_records() if found.config.name == f"{MODEL}/{name}"
    )


def test_fewer_bits_diverge_more(whole: StudyFolder) -> None:
    assert_fewer_bits_diverge_more("transformers", whole)


def test_a_variant_has_no_divergence_from_itself_in_another_start(
    whole: StudyFolder, damaged: StudyFolder
) -> None:
    here, there = (record(folder, "bf16 @ transformers") for folder in (whole, damaged))
    assert here.corpus == there.corpus
    first, second = make_scores(whole.scores_of(here)), make_scores(damaged.scores_of(there))
    assert divergence(first, second).max() == 0.0
    assert (first.logprob == second.logprob).all()


def test_a_damaged_layer_is_flagged(damaged: StudyFolder) -> None:
    found = quality(StudyReport(damaged, get_default_home()).summary, "w8a8-rtn @ transformers")
    assert found.flagged
    assert "beyond the limit" in (found.reason or "")
    assert "flagged" in quality_section(damaged)

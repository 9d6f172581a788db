"""What eight and four bits cost in quality on real vLLM.

Slow, because each config is a start of vLLM. Needs: bitbench env create vllm, quantize; bitbench model get
smollm2-135m.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from bitbench.machine.workplace import get_default_home
from bitbench.records.folder import StudyFolder
from bitbench.reports.write import StudyReport
from tests.e2e.conftest import WINDOWS
from tests.e2e.test_quality import MODEL, assert_diverges_little, assert_diverges_much


def measured(engine: str, place: Path) -> StudyFolder:
    command = [
        sys.executable,
        "-m",
        "bitbench",
        "quality",
        MODEL,
        "--recipes",
        "w8a8-rtn,w4a16-rtn",
    ]
    command += [
        "--engine",
        engine,
        "--windows",
        str(WINDOWS),
        "--window-tokens",
        "128",
        "--no-answers",
    ]
    subprocess.run([*command, "--into", "out"], cwd=place, check=True, timeout=1500)
    return StudyFolder.existing(place / "out")


def assert_fewer_bits_diverge_more(engine: str, folder: StudyFolder) -> None:
    summary = StudyReport(folder, get_default_home()).summary
    eight = assert_diverges_little(summary, f"w8a8-rtn @ {engine}", f"bf16 @ {engine}")
    four = assert_diverges_much(summary, f"w4a16-rtn @ {engine}", f"bf16 @ {engine}")
    assert eight.estimates["top1_agreement"].value > four.estimates["top1_agreement"].value


@pytest.mark.timeout(1800)
def test_fewer_bits_diverge_more(tmp_path: Path) -> None:
    assert_fewer_bits_diverge_more("vllm", measured("vllm", tmp_path))

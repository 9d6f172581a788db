"""The VPTQ kernel for 64-bit Arm, compiled here and run under qemu: its results, not its speed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "native-arm"
TOOLS = ("cmake", "aarch64-linux-gnu-g++", "qemu-aarch64")
LEVELS = {"cortex-a72": ["neon"], "neoverse-n1": ["neon-dot", "neon"], "max": ["neon-i8mm", "neon-dot", "neon"]}


@pytest.mark.timeout(900)
def test_every_level_of_arm_agrees_with_the_portable_one(tmp_path: Path) -> None:
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"{', '.join(missing)} not installed: apt-get install cmake g++-aarch64-linux-gnu qemu-user")
    environment = os.environ | {"BUILD": str(tmp_path)}
    ended = subprocess.run([SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for processor, levels in LEVELS.items():
        report = ended.stdout.split(f"{processor}:\n")[1].splitlines()[: len(levels) + 1]
        assert [line.partition(":")[0] for line in report] == [*levels, "portable"]

"""`--on gpus` on stand-ins for four GPUs: each block sees one, and the records name it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bitbench.records.folder import StudyFolder
from bitbench.util.errors import ExitCode
from tests.left_behind import marked

pytest.importorskip("ray", reason="Ray is in the group dev; this environment was made before")
STAND_INS = Path(__file__).parents[1] / "slow" / "cuda_stand_in"
STUDY = """
name: gpus
engines: [{engine: null, name: a, args: {ttft: 200ms, tpot: 100ms}}]
workloads: [{name: one, concurrency: 1, input_tokens: 8, output_tokens: 2}]
measure: {starts: 4, trials: 2}
"""


def libraries(folder: Path) -> Path:
    """NVML with the devices of FAKE_GPU, and a driver that can be initialized."""
    driver = folder / "cuda.c"
    driver.write_text(
        (STAND_INS / "cuda.c")
        .read_text()
        .replace("cuInit(unsigned f){return 100;}", "cuInit(int f){return 0;}")
    )
    for name, source in (("libnvidia-ml.so.1", STAND_INS / "nvml.c"), ("libcuda.so.1", driver)):
        subprocess.run(["cc", "-w", "-shared", "-fPIC", "-o", folder / name, source], check=True)
    return folder


def test_a_block_runs_on_each_gpu(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "CUDA_"))
    }
    variables |= {"LD_LIBRARY_PATH": str(libraries(tmp_path)), "FAKE_GPU": "NVIDIA L4;8;9;23034;4"}
    command = [
        sys.executable,
        "-m",
        "bitbench",
        "run",
        "study.yaml",
        "--into",
        "out",
        "--on",
        "gpus",
    ]
    environment = {**marked(tmp_path), **variables}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == ExitCode.DONE, done.stdout + done.stderr
    records = StudyFolder(tmp_path / "out").read()
    for name, host in records.lock.hosts.items():
        (gpu,) = host.accelerators
        assert gpu.uuid is not None
        assert name.endswith(gpu.uuid)
    assert len(records.lock.hosts) == 4
    hosts = {instance.block: instance.host for instance in records.instances}
    assert len(hosts) == 4
    assert len(set(hosts.values())) > 1

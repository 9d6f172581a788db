"""The whole of `tests/chain/test_faults.py`: each process killed at many moments, and disks of many sizes."""

import random
from pathlib import Path

import pytest

from bitbench.ground.exit_codes import ExitCode
from tests.chain.test_faults import in_own_mounts
from tests.fault_study import ROLES, FaultyRun, check_no_blame, kill_and_resume

pytestmark = pytest.mark.shares

KILLS = 10  # of each process
SAID_OF_A_FULL_DISK: dict[int, str] = {
    ExitCode.DONE: "",
    ExitCode.REFUSED: "No space left on device; free some space and repeat the command",  # it names the file
    ExitCode.UNAVAILABLE: "the disk is full; free some space, then repeat the command",
}


@pytest.mark.parametrize("number", range(KILLS))
@pytest.mark.parametrize("role", ROLES)
def test_one_of_its_processes_is_killed_at_any_moment(role: str, number: int, tmp_path: Path) -> None:
    kill_and_resume(tmp_path, role, wait_s=random.Random(f"{role}/{number}").uniform(0.0, 0.8))


@pytest.mark.parametrize("kilobytes", range(8, 208, 8))
def test_a_disk_that_is_full_at_any_moment(kilobytes: int, tmp_path: Path) -> None:
    """Whatever is the first to be refused: the lock, the log of an engine, rows, a line, the report."""
    run = FaultyRun(tmp_path, in_own_mounts(f"mount -t tmpfs -o size={kilobytes}k tmpfs out"))
    ended = run.wait()
    assert ended.exit_code in SAID_OF_A_FULL_DISK, ended.said
    assert SAID_OF_A_FULL_DISK[ended.exit_code] in ended.said
    check_no_blame([], ended.said)
    assert "crashed" not in ended.said
    assert not run.left_over()

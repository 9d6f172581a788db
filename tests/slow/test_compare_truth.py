"""How often is `bitbench compare` wrong? Real trials of null engines whose schedule is known, through the command line.

Each schedule is run once with many starts; a study is a few of these starts, drawn at random. Two disjoint draws from
the same schedule are equal in truth; draws from the schedule that takes 10 % longer are slower in truth.
"""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.records.trial import TrialRecord
from tests.chain.conftest import BITBENCH
from tests.study_pairs import exit_code, write_folder

PAIRS = 200
POOL = 24  # starts of each schedule
STARTS = 4  # of each study
ALLOWED = ("arguments", "kernel")  # the null engine calls its schedule its kernel

STUDY = """
name: truth
engines:
  - {{engine: null, name: engine, args: {{ttft: {ttft}, tpot: {tpot}, vary: 0.005, vary_instance: 0.005}}}}
workloads:
  - {{name: single, concurrency: 1, input_tokens: 64, output_tokens: 16}}
measure: {{starts: {pool}, trials: 3}}
"""


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StudyRecords]:
    place = tmp_path_factory.mktemp("truth")
    found = {}
    for name, slower in (("usual", 1.0), ("slow", 1 / 0.9)):
        text = STUDY.format(ttft=f"{40 * slower:.3f}ms", tpot=f"{4 * slower:.4f}ms", pool=POOL)
        (place / f"{name}.yaml").write_text(text)
        done = subprocess.run(
            [*BITBENCH, "run", f"{name}.yaml", "--into", name],
            cwd=place,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found[name] = StudyFolder(place / name).read()
    return found


def drawn(pool: StudyRecords, starts: "list[str]") -> StudyRecords:
    trials: list[TrialRecord] = [trial for trial in pool.trials if trial.instance_id in starts]
    instances = [instance for instance in pool.instances if instance.id in starts]
    return StudyRecords(pool.name, pool.lock, trials, instances)


def share_that_fails(
    before: StudyRecords,
    after: StudyRecords,
    limit: str,
    place: Path,
    capsys: pytest.CaptureFixture[str],
) -> float:
    rng = np.random.default_rng(1)
    failed = 0
    for number in range(PAIRS):
        ids = [[instance.id for instance in pool.instances] for pool in (before, after)]
        order = rng.permutation(POOL)
        other = order[STARTS : 2 * STARTS] if before is after else rng.permutation(POOL)[:STARTS]
        first = drawn(before, [ids[0][place] for place in order[:STARTS]])
        second = drawn(after, [ids[1][place] for place in other])
        folders = (
            write_folder(place / f"a{number}", first),
            write_folder(place / f"b{number}", second),
        )
        failed += exit_code(capsys, *folders, limit, *ALLOWED) == 1
    return failed / PAIRS


@pytest.mark.timeout(900)
@pytest.mark.parametrize("limit", ["output_throughput < 0%", "output_throughput < -3%"])
def test_equal_studies_seldom_fail(
    pools: dict[str, StudyRecords], limit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    share = share_that_fails(pools["usual"], pools["usual"], limit, tmp_path, capsys)
    print(f"equal, {limit}: exit code 1 in {share:.1%} of {PAIRS}")
    assert share <= 0.05


@pytest.mark.timeout(900)
def test_ten_percent_slower_fails(
    pools: dict[str, StudyRecords], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    share = share_that_fails(
        pools["usual"], pools["slow"], "output_throughput < -3%", tmp_path, capsys
    )
    print(f"10 % slower: exit code 1 in {share:.1%} of {PAIRS}")
    assert share >= 0.95

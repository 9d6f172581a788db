"""A server that remembers prompts: two runs of `load` have nothing in common for it, and where they have it is said."""

import subprocess
from pathlib import Path

import pytest

from bitbench.records.folder import StudyFolder
from bitbench.util.errors import ExitCode
from tests.forked import bitbench_process
from tests.support.remembering_server import RememberingServer, remembering

ASKED = ["--concurrency", "2", "--requests", "4", "--trials", "3", "--output-tokens", "2"]
LIMIT = ["--fail-if", "output_throughput < -30%"]


def load(
    server: RememberingServer, folder: Path, *options: str
) -> "subprocess.CompletedProcess[str]":
    """Until its trials count: the same command again measures what a busy machine rejected."""
    for _ in range(3):
        done = bitbench_process(
            "load", server.url, *ASKED, *options, "--into", folder.name, cwd=folder.parent
        )
        if sum(trial.counts for trial in StudyFolder(folder).trials()) >= 3:
            break
    assert done.returncode == ExitCode.DONE, done.stdout + done.stderr
    return done


def shares(folder: Path) -> list[float | None]:
    return [trial.cached_share for trial in StudyFolder.existing(folder).trials() if trial.counts]


@pytest.mark.alone
def test_a_second_run_has_prompts_of_its_own_and_gains_nothing(tmp_path: Path) -> None:
    with remembering() as server:
        first, second = (load(server, tmp_path / name) for name in ("first", "second"))
        assert len(set(server.prompts)) == len(
            server.prompts
        )  # first contacts and warm-ups included
    assert shares(tmp_path / "first") == shares(tmp_path / "second") == [0.0, 0.0, 0.0]
    assert "Cached prompts" not in first.stdout + second.stdout
    compared = bitbench_process("compare", "first", "second", *LIMIT, cwd=tmp_path)
    assert compared.returncode == ExitCode.DONE, compared.stdout
    assert "prefix cache" not in compared.stdout
    seeds = [
        StudyFolder.existing(tmp_path / name).read().study.seed for name in ("first", "second")
    ]
    assert seeds[0] != seeds[1]


@pytest.mark.alone
def test_a_seed_that_is_given_twice_is_found_out_and_decides_nothing(tmp_path: Path) -> None:
    with remembering() as server:
        load(server, tmp_path / "first", "--seed", "7")
        again = load(server, tmp_path / "second", "--seed", "7")
    assert shares(tmp_path / "second") == [0.875, 0.875, 0.875]
    assert (
        "Cached prompts: on c-2 a prefix cache answered 87.5 % of the prompt tokens (3 trials)"
        in plain(again.stdout)
    )
    for limits in ([], LIMIT, [*LIMIT, "--allow-inconclusive"]):
        compared = bitbench_process("compare", "first", "second", *limits, cwd=tmp_path)
        assert compared.returncode == ExitCode.INCONCLUSIVE, compared.stdout
        assert "inconclusive (c-2)" in plain(compared.stdout) or "inconclusive (remembers" in plain(
            compared.stdout
        )
        assert "prefix cache answered the prompts of one side only" in plain(compared.stdout)
        assert "0 % of the prompt tokens came from a prefix cache before, 87.5 % after" in plain(
            compared.stdout
        )
    meant = bitbench_process(
        "compare", "first", "second", "--allow", "prefix-caching", cwd=tmp_path
    )
    assert meant.returncode == ExitCode.DONE, meant.stdout
    assert "faster" in meant.stdout


@pytest.mark.alone
def test_a_run_that_is_resumed_keeps_its_seed(tmp_path: Path) -> None:
    with remembering() as server:
        load(server, tmp_path / "first")
        seed = StudyFolder.existing(tmp_path / "first").read().study.seed
        load(server, tmp_path / "first")
        assert len(set(server.prompts)) == len(server.prompts)
    assert StudyFolder.existing(tmp_path / "first").read().study.seed == seed


def plain(text: str) -> str:
    return " ".join(text.split())

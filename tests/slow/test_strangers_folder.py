"""In a stranger's folder nothing outside changes and nothing hangs, also in a process that really runs."""

import os
import subprocess
from pathlib import Path

from bitbench.util.errors import BitbenchError
from tests.chain.conftest import BITBENCH
from tests.stranger_commands import nothing
from tests.strangers import KINDS, LONGEST_S, Command, harms, paths_written
from tests.support.null_instance import running

STUDY = """
name: small
engines: [{engine: null, args: {ttft: 1ms, tpot: 1ms}}]
workloads: [{name: one, concurrency: 1, input_tokens: 8, output_tokens: 8}]
measure: {starts: 1, trials: 1}
"""
DEFECT = 70


def real(place: Path, *arguments: str, key: str = "") -> None:
    """The command in a process of its own, in the place and with the place's own home."""
    done = subprocess.run(
        [*BITBENCH, *arguments],
        cwd=place,
        env={**os.environ, "BITBENCH_HOME": str(place / "home"), "OPENAI_API_KEY": key},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert done.returncode != DEFECT, done.stderr
    if done.returncode:
        raise BitbenchError(done.stderr.strip().splitlines()[-1])


def write_study(place: Path) -> None:
    (place / "s.yaml").write_text(STUDY)


def test_a_real_run_with_one_trap_at_every_path(tmp_path: Path) -> None:
    command = Command(
        "run", write_study, lambda place: real(place, "run", "s.yaml", "--into", "study")
    )
    one_trap_each(command, tmp_path)


def test_a_real_load_with_one_trap_at_every_path(tmp_path: Path) -> None:
    options = [
        "--concurrency",
        "1",
        "--requests",
        "4",
        "--trials",
        "1",
        "--output-tokens",
        "8",
        "--into",
        "study",
    ]
    with running({"ttft": "1ms", "tpot": "1ms"}, tmp_path) as endpoint:

        def load(place: Path) -> None:
            real(place, "load", endpoint.url, *options, key=endpoint.api_key or "")

        one_trap_each(Command("load", nothing, load), tmp_path)


def one_trap_each(command: Command, tmp_path: Path) -> None:
    """A process takes seconds, so of the kinds each path gets one, in turn."""
    paths = paths_written(command, tmp_path / "clean")
    traps = [(path, KINDS[number % len(KINDS)]) for number, path in enumerate(paths)]
    print(f"{command.name}: {len(traps)} paths, one kind each")
    assert harms(command, tmp_path, traps) == {}

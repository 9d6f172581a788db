"""A real slowdown, measured by the whole chain: null engines whose schedule is known."""

from pathlib import Path

import pytest

from bitbench.util.errors import ExitCode
from tests.forked import bitbench_process

pytestmark = pytest.mark.alone

STUDY = """
name: gate
engines:
  - {{engine: null, name: engine, args: {{ttft: {ttft}, tpot: {tpot}, vary: 0.005, vary_instance: 0.005}}}}
workloads:
  - {{name: single, concurrency: 1, input_tokens: 64, output_tokens: 2}}
measure: {{starts: 3, trials: 3}}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("gate")
    for name, slower in (("before", 1.0), ("same", 1.0), ("slower", 1 / 0.9)):
        # A second each: a busy machine that stalls a process for 100 ms hides no 10 %, and rejects few trials.
        text = STUDY.format(ttft=f"{700 * slower:.1f}ms", tpot=f"{300 * slower:.1f}ms")
        (place / f"{name}.yaml").write_text(text)
        done = bitbench_process("run", f"{name}.yaml", "--into", name, cwd=place)
        assert done.returncode == 0, done.stdout + done.stderr
    return place


LIMIT = ("--fail-if", "output_throughput < -3%", "--format", "markdown")


def test_the_schedule_is_an_argument_and_must_be_allowed(place: Path) -> None:
    refused = bitbench_process("compare", "before", "slower", *LIMIT, cwd=place)
    assert refused.returncode == ExitCode.REFUSED
    assert "--allow kernel --allow arguments" in refused.stderr


def test_a_real_slowdown_of_ten_percent_fails(place: Path) -> None:
    allowed = (
        "--allow",
        "arguments",
        "--allow",
        "kernel",
    )  # the null engine calls its schedule its kernel
    found = bitbench_process("compare", "before", "slower", *allowed, *LIMIT, cwd=place)
    assert found.returncode == 1, found.stdout + found.stderr
    assert "slower (`engine · single`)" in found.stdout


def test_the_same_again_does_not(place: Path) -> None:
    found = bitbench_process("compare", "before", "same", *LIMIT, cwd=place)
    assert found.returncode in (0, 2), found.stdout + found.stderr

"""A third-party package with an engine, an environment and a feature of its own, from its installation to a report.

Needs a package index that pip reaches: the package's build backend and the one package of its lock come from there.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import bitbench
from bitbench.records.folder import StudyFolder
from bitbench.records.trial import Outcome
from tests.busy_machine import expected_exit_code
from tests.chain.conftest import BITBENCH

SOURCE = Path(__file__).parents[1] / "example_engine"
STUDY = """
bitbench: 1
name: example
engines:
  - {engine: example, args: {word: hello}}
workloads:
  - {name: single, concurrency: 1, input_tokens: 16, output_tokens: 8}
measure: {starts: 1, trials: 2}
"""


class Place:
    """A user's machine: the package is installed, and nothing of it is in our own environment."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self._packages = folder, folder / "home", folder / "packages"
        install = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            f"--target={self._packages}",
            SOURCE,
        ]
        subprocess.run(install, check=True)

    def bitbench(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        ours = Path(bitbench.__file__).parents[1]
        variables = {
            "PYTHONPATH": f"{self._packages}{os.pathsep}{ours}",
            "BITBENCH_HOME": str(self.home),
        }
        return subprocess.run(
            [*BITBENCH, *arguments],
            cwd=self.folder,
            env={**os.environ, **variables, "COLUMNS": "150"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    made = Place(tmp_path_factory.mktemp("example"))
    created = made.bitbench("env", "create", "example")
    assert created.returncode == 0, created.stdout + created.stderr
    return made


def test_its_environment_is_made_from_its_own_lock(place: Place) -> None:
    manifest = json.loads(
        (place.home / "envs" / "example" / "bitbench-environment.json").read_text()
    )
    assert (manifest["lock"], manifest["versions"]["six"]) == ("example-cpu.txt", "1.17.0")
    (line,) = [
        line for line in place.bitbench("env", "list").stdout.splitlines() if "example" in line
    ]
    assert line.split()[:4] == ["example", "ready", "six", "1.17.0"]


def test_a_study_runs_on_it_from_end_to_end(place: Place) -> None:
    (place.folder / "study.yaml").write_text(STUDY)
    done = place.bitbench("run", "study.yaml", "--into", "out")
    folder = StudyFolder.existing(place.folder / "out")
    assert done.returncode == expected_exit_code(folder), done.stdout + done.stderr
    assert {trial.outcome for trial in folder.trials()} <= {
        Outcome.OK,
        Outcome.CLIENT_BOUND,
    }  # a busy machine is late
    (instance,) = folder.instances()
    assert instance.facts is not None
    assert (
        instance.facts.engine_version == "1.17.0"
    )  # said by the server, so it ran in that environment
    assert "- `example` repeats `hello`." in (folder.report / "report.md").read_text()
    assert "words," in place.bitbench("--help").stdout
    assert place.bitbench("words", "out").stdout == "example: hello\n"

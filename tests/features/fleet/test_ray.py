"""Studies on a real Ray cluster of two nodes on this machine: everything is measured once, whoever dies."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from bitbench.records.block_lines import BlockLines
from bitbench.records.folder import StudyFolder
from bitbench.records.trial import NOT_THE_ENGINES, Outcome
from bitbench.running.offers import load_client
from bitbench.running.progress import CLIENT_BOUND_REPEATS
from bitbench.util.errors import ExitCode, UsageError
from tests.busy_machine import LEFT_OVER_S
from tests.features.fleet.ray_nodes import open_server, ray_nodes, variables
from tests.left_behind import alive_in, marked

pytest.importorskip("ray", reason="Ray is in the group dev; this environment was made before")
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.alone,
]  # a node that starts on a busy machine may give up

BLOCKS, TRIALS = 3, 2
STUDY = f"""
name: nodes
engines:
  - {{engine: null, name: a, args: {{ttft: 200ms, tpot: 150ms}}}}
  - {{engine: null, name: b, args: {{ttft: 200ms, tpot: 200ms}}}}
workloads:
  - {{name: one, concurrency: 1, input_tokens: 8, output_tokens: 2}}
measure: {{starts: {BLOCKS}, trials: {TRIALS}}}
"""


@dataclass
class Cluster:
    on: str
    environment: dict[str, str] = field(repr=False)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with ray_nodes(folder, 2) as on:
        yield Cluster(on, variables(folder))


class Run:
    def __init__(
        self, place: Path, cluster: Cluster, *options: str, study: str = STUDY, **changes: str
    ) -> None:
        (place / "study.yaml").write_text(study)
        self.place, self.folder = place, StudyFolder(place / "out")
        command = [
            sys.executable,
            "-m",
            "bitbench",
            "run",
            "study.yaml",
            "--into",
            "out",
            "--on",
            cluster.on,
            *options,
        ]
        environment = {**marked(place), **cluster.environment, **changes}
        self.said = place / "said.txt"
        with self.said.open("a") as output:
            self.process = subprocess.Popen(
                command, cwd=place, env=environment, stdout=output, stderr=output
            )

    def wait(self) -> int:
        return self.process.wait(300)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 200
        while not condition():
            assert self.process.poll() is None, self.said.read_text()
            assert time.monotonic() < deadline, self.said.read_text()
            time.sleep(0.05)

    def measured(self) -> int:
        return sum(trial.kind == "measured" for trial in self.folder.trials())


def actors() -> list[psutil.Process]:
    """Hosts of blocks, as Ray names their processes."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any("BlockHost" in word for word in process.info["cmdline"] or ()):
            found.append(process)
    return found


def engines() -> list[psutil.Process]:
    """What hosts have started."""
    below = [child for actor in actors() for child in actor.children(recursive=True)]
    return [child for child in below if "null_server" in " ".join(child.cmdline())]


def check_once(folder: StudyFolder) -> None:
    """Each point has its trials in each block, once, and those that count are of one host."""
    trials = [trial for trial in folder.trials() if trial.kind == "measured"]
    assert {trial.outcome for trial in trials} <= {Outcome.OK, *NOT_THE_ENGINES}
    numbers = Counter((trial.point.name, trial.block, trial.index) for trial in trials)
    assert set(numbers.values()) == {1}
    hosts = {instance.id: instance.host for instance in folder.instances()}
    lines = BlockLines(folder).newest
    assert {line.event for line in lines.values()} == {"ended"}
    for block in range(BLOCKS):
        for engine in "ab":
            own = [one for one in trials if (one.block, one.point.config.engine) == (block, engine)]
            counted = [one for one in own if one.counts]
            late = sum(one.outcome is Outcome.CLIENT_BOUND for one in own)
            assert len(counted) >= TRIALS or late > CLIENT_BOUND_REPEATS
            assert {hosts[one.instance_id] for one in counted} == {lines[block].host}
    assert all((folder.path / str(one.log_file)).exists() for one in folder.instances())


def nothing_is_left(place: Path) -> bool:
    deadline = time.monotonic() + LEFT_OVER_S
    while (actors() or alive_in(place)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return not actors() and not alive_in(place)


def test_a_host_that_is_killed_loses_its_block_once(cluster: Cluster, tmp_path: Path) -> None:
    run = Run(tmp_path, cluster)
    run.wait_for(lambda: run.measured() >= 1 and len(actors()) == 2)
    actors()[0].kill()
    assert run.wait() == ExitCode.DONE, run.said.read_text()
    check_once(run.folder)
    lines = (run.folder.path / "blocks.jsonl").read_text()
    assert lines.count('"event":"begun"') == BLOCKS + lines.count('"event":"void"')
    assert "was lost" in run.said.read_text()
    assert set(run.folder.read().lock.hosts) == {"n0", "n1"}
    assert nothing_is_left(tmp_path)


def test_a_driver_that_is_killed_resumes(cluster: Cluster, tmp_path: Path) -> None:
    run = Run(tmp_path, cluster)
    run.wait_for(lambda: run.measured() >= 1)
    family = engines()
    os.kill(run.process.pid, signal.SIGKILL)
    run.wait()
    _, alive = psutil.wait_procs(family, timeout=LEFT_OVER_S)
    assert not alive
    ended = {trial.id for trial in run.folder.trials()}
    assert Run(tmp_path, cluster).wait() == ExitCode.DONE
    check_once(run.folder)
    assert ended <= {trial.id for trial in run.folder.trials()}
    assert nothing_is_left(tmp_path)


def test_a_budget_is_the_time_of_all_nodes_together(cluster: Cluster, tmp_path: Path) -> None:
    study = STUDY.replace(
        f"{{starts: {BLOCKS}, trials: {TRIALS}}}", "{budget: 40s, starts: {min: 2, max: 6}}"
    )
    run = Run(tmp_path, cluster, study=study)
    assert run.wait() == ExitCode.DONE, run.said.read_text()
    lines = BlockLines(run.folder).newest
    assert set(lines) >= {0, 1, 2, 3}  # two nodes, two blocks each
    assert {line.event for line in lines.values()} == {"ended"}
    assert max(line.rounds for line in lines.values()) > 1
    counts = Counter((one.block, one.point.name) for one in run.folder.trials() if one.counts)
    assert all(1 <= count <= lines[block].rounds for (block, _), count in counts.items())


def test_another_token_and_another_class_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0" * 64)
    run = Run(tmp_path, cluster, RAY_AUTH_TOKEN_PATH=str(tmp_path / "token"))
    assert run.wait() == ExitCode.UNAVAILABLE
    assert "cannot be used" in run.said.read_text()
    nobody = Cluster(f"{cluster.on}?resource=b", cluster.environment)
    assert Run(tmp_path, nobody).wait() == ExitCode.UNAVAILABLE
    assert not run.folder.trials()


def test_two_machines_send_one_plan(cluster: Cluster, tmp_path: Path) -> None:
    options = [
        "--concurrency",
        "4",
        "--requests",
        "20",
        "--output-tokens",
        "8",
        "--trials",
        "1",
        "--into",
        "out",
    ]
    environment = {**marked(tmp_path), **cluster.environment}
    environment.pop("OPENAI_API_KEY", None)
    with open_server(tmp_path, ttft=0.2, tpot=0.02) as url:
        command = [sys.executable, "-m", "bitbench", "load", url, "--on", cluster.on, *options]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
    folder = StudyFolder(tmp_path / "out")
    trials = [
        trial for trial in folder.trials() if trial.kind == "measured" and trial.requests == 20
    ]
    assert trials, done.stdout + done.stderr
    client = trials[0].client
    assert client is not None
    assert {machine.name: machine.requests for machine in client.nodes} == {"n0": 10, "n1": 10}
    assert max(machine.off_by_s for machine in client.nodes) < 0.1
    rows = folder.requests_of(trials[0])
    assert sorted(rows["request"].to_pylist()) == list(range(20))
    assert set(rows["status"].to_pylist()) == {"ok"}


def test_a_key_does_not_cross_an_open_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    with pytest.raises(UsageError, match="RAY_USE_TLS"):
        load_client(None, "ray://127.0.0.1:1", api_key_env="PATH")

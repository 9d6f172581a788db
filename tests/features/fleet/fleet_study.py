"""A study on null engines that runs on several machines, and who its processes are."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil

from bitbench.features.fleet.channel import NODE
from bitbench.measure.progress import CLIENT_BOUND_REPEATS
from bitbench.records.folder import StudyFolder
from bitbench.records.trial import NOT_THE_ENGINES, Outcome
from tests.busy_machine import LEFT_OVER_S
from tests.left_behind import alive_in, marked

BITBENCH = [sys.executable, "-m", "bitbench"]
BLOCKS, TRIALS = 4, 3
# Slow, and with gaps longer than a busy machine stalls: there a client that reads late has the kernel's times.
STUDY = f"""
name: fleet
engines:
  - {{engine: null, name: a, args: {{ttft: 200ms, tpot: 250ms}}}}
  - {{engine: null, name: b, args: {{ttft: 200ms, tpot: 300ms}}}}
workloads:
  - {{name: one, concurrency: 1, input_tokens: 8, output_tokens: 2}}
measure: {{starts: {BLOCKS}, trials: {TRIALS}}}
"""
_TIMEOUT_S = 180.0


class FleetRun:
    """`bitbench run --on` in a folder of its own."""

    def __init__(self, place: Path, on: str, study: str = STUDY, environment: dict[str, str] | None = None) -> None:
        self.place, self.folder = place, StudyFolder(place / "out")
        (place / "study.yaml").write_text(study)
        self._said = place / "said.txt"
        with self._said.open("a") as output:
            self.process = subprocess.Popen(
                [*BITBENCH, "run", "study.yaml", "--into", "out", "--on", on],
                cwd=place,
                stdout=output,
                stderr=output,
                env={**marked(place), **(environment or {})},
            )

    @property
    def said(self) -> str:
        return self._said.read_text()

    def wait(self) -> int:
        return self.process.wait(_TIMEOUT_S)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while not condition():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, f"it takes too long: {self.said}"
            time.sleep(0.02)

    def nodes(self) -> list[psutil.Process]:
        try:
            children = psutil.Process(self.process.pid).children()
            return [one for one in children if NODE in one.cmdline()]
        except psutil.Error:
            return []

    def servers_of_first(self) -> list[psutil.Process]:
        """Of the first machine; none between two blocks."""
        try:
            below = [one for node in self.nodes()[:1] for one in node.children(recursive=True)]
            return [one for one in below if "null_server" in " ".join(one.cmdline())]
        except psutil.Error:
            return []

    def left_over(self) -> list[psutil.Process]:
        """Its processes that are still alive some seconds after its end."""
        deadline = time.monotonic() + LEFT_OVER_S
        while (alive := alive_in(self.place)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return alive


def check_complete(folder: StudyFolder, blocks: int = BLOCKS, trials: int = TRIALS, engines: str = "ab") -> None:
    """Each point has its trials in each block, once, and on one machine; nothing is blamed on an engine."""
    records = folder.trials()
    measured = [trial for trial in records if trial.kind == "measured"]
    assert {trial.outcome for trial in measured} <= {Outcome.OK, *NOT_THE_ENGINES}, [one.cause for one in measured]
    numbers = Counter((trial.point.name, trial.block, trial.index) for trial in measured)
    assert max(numbers.values()) == 1, numbers
    hosts = {instance.id: instance.host for instance in folder.instances()}
    for block in range(blocks):
        for engine in engines:
            of_block = [trial for trial in measured if (trial.point.config.engine, trial.block) == (engine, block)]
            outcomes = Counter(trial.outcome for trial in of_block if trial.turn == 0)
            late = outcomes[Outcome.CLIENT_BOUND] > CLIENT_BOUND_REPEATS
            # The baseline has a turn beside whoever is left of a block, so an interruption gives it more.
            enough = outcomes[Outcome.OK] >= trials if engine == "a" else outcomes[Outcome.OK] == trials
            assert enough or late, (engine, block, outcomes)
        of_block = {hosts[trial.instance_id] for trial in measured if trial.block == block and trial.counts}
        assert len(of_block) <= 1, of_block
    rows = {f"{trial.id}.parquet" for trial in records if trial.requests_file}
    assert {path.name for path in folder.requests.iterdir()} == rows

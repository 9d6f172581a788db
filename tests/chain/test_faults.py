"""Faults of the machine while a study runs: never an engine's outcome, never called a bug, and no process is left."""

import http.server
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from bitbench.engines import processes
from bitbench.records.folder import StudyFolder
from bitbench.records.trial import Outcome
from bitbench.util.errors import ExitCode
from tests.busy_machine import expected_exit_code
from tests.command_line import bitbench
from tests.fault_study import (
    ROLES,
    STUDY,
    FaultyRun,
    check_complete,
    check_no_blame,
    kill_and_resume,
)
from tests.length import by_length

MANY_STREAMS = STUDY.replace("concurrency: 1", "concurrency: 200")
IN_A_TRIAL_S = 0.1  # after the one before
MOMENTS_S = by_length([IN_A_TRIAL_S], [IN_A_TRIAL_S, *(0.09 * number for number in range(10))])
DISKS = by_length(
    [120], [*range(8, 208, 8)]
)  # kilobytes; whatever is the first to be refused: lock, log, rows, report
SAID_OF_A_FULL_DISK: dict[int, str] = {
    ExitCode.DONE: "",
    ExitCode.REFUSED: "No space left on device; free some space and repeat the command",  # it names the file
    ExitCode.UNAVAILABLE: "the disk is full; free some space, then repeat the command",
}


@pytest.mark.parametrize("wait_s", MOMENTS_S)
@pytest.mark.parametrize("role", ROLES)
def test_one_of_its_processes_is_killed(role: str, wait_s: float, tmp_path: Path) -> None:
    trials = kill_and_resume(tmp_path, role, wait_s)
    disturbed = [trial for trial in trials if trial.outcome is Outcome.DISTURBED]
    if role in ("engine", "guardian"):
        if wait_s != IN_A_TRIAL_S and not disturbed:
            return  # between two trials nothing was lost
        assert [trial.cause for trial in disturbed] == [
            "It was killed by signal 9 from outside: the kernel reports no lack of memory, and its log no error."
        ]
    else:
        assert not disturbed


class Forger(http.server.BaseHTTPRequestHandler):
    """Says that it is ready, and notes what it is told."""

    told: list[str]

    def do_GET(self) -> None:
        self.told.append(str(self.headers))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(json.dumps({}).encode())

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def forger() -> Iterator[int]:
    Forger.told = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Forger) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_another_process_has_the_port_first(
    forger: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(STUDY)
    ports = iter([forger])
    choose = processes.free_port
    with patch("bitbench.engines.null.free_port", lambda: next(ports, None) or choose()):
        answer = bitbench(capsys, "run", "study.yaml", "--into", "out")
    folder = StudyFolder(tmp_path / "out")
    trials = folder.trials()
    assert answer.exit_code == expected_exit_code(folder), answer.err
    check_no_blame(trials, answer.out + answer.err)
    check_complete(trials)
    assert trials[0].outcome is Outcome.DISTURBED
    assert Forger.told, "nobody asked whether it is ready"
    assert "Bearer" not in "".join(Forger.told)


def test_more_connections_than_this_process_may_open(tmp_path: Path) -> None:
    run = FaultyRun(tmp_path, ("prlimit", "--nofile=100:100"), MANY_STREAMS)
    ended = run.wait()
    assert ended.exit_code == ExitCode.UNAVAILABLE, ended.said
    assert (
        "too many open files; raise `ulimit -n` (100 now), or lower the concurrency" in ended.said
    )
    check_no_blame(run.trials(), ended.said)
    assert not run.left_over()


@pytest.mark.parametrize("kilobytes", DISKS)
def test_a_full_disk(kilobytes: int, tmp_path: Path) -> None:
    run = FaultyRun(tmp_path, in_own_mounts(f"mount -t tmpfs -o size={kilobytes}k tmpfs out"))
    ended = run.wait()
    if kilobytes == 120:
        assert ended.exit_code == ExitCode.REFUSED, ended.said
    assert SAID_OF_A_FULL_DISK[ended.exit_code] in ended.said
    check_no_blame([], ended.said)
    assert "crashed" not in ended.said
    assert not run.left_over()


# Once there are two trials the disk fills while the next one runs. Then there is room again, and the same command runs.
FILLED = """mount -t tmpfs -o size=4m tmpfs out || exit 1
(
    until [ "$(grep -c . out/trials.jsonl 2> /dev/null)" = 2 ]; do sleep 0.02; done
    sleep {wait_s}
    cat /dev/zero > out/filler 2> /dev/null
) &
"$@"
echo "first: $?"
cp -r out full
rm out/filler
"$@"
code=$?
cp -r out kept
exit $code; true"""


@pytest.mark.parametrize("wait_s", MOMENTS_S)
def test_a_disk_that_fills_in_the_middle_of_a_trial(wait_s: float, tmp_path: Path) -> None:
    """What was written before is there, nothing half is taken for a record, and the same command completes it."""
    run = FaultyRun(tmp_path, in_own_mounts(FILLED.format(wait_s=wait_s)))
    ended = run.wait()
    said_first, _, rest = ended.said.partition("first: ")
    first = int(rest.split()[0])
    assert SAID_OF_A_FULL_DISK.get(first), ended.said
    assert SAID_OF_A_FULL_DISK[first] in said_first
    kept = StudyFolder(tmp_path / "kept")
    assert ended.exit_code == expected_exit_code(kept), ended.said
    trials = kept.trials()
    check_no_blame(trials, ended.said)
    check_complete(trials)
    before = StudyFolder(tmp_path / "full").trials()
    assert len(before) >= 2
    assert {trial.id for trial in before} <= {trial.id for trial in trials}
    assert len(trials) == len({trial.id for trial in trials})
    for trial in trials:
        if trial.outcome is Outcome.OK:
            assert kept.requests_of(trial).num_rows == trial.requests
    assert not run.left_over()


def test_a_read_only_folder(tmp_path: Path) -> None:
    run = FaultyRun(tmp_path, in_own_mounts("mount -t tmpfs -o ro tmpfs out"))
    ended = run.wait()
    assert ended.exit_code == ExitCode.REFUSED, ended.said
    assert "Read-only file system; make the folder writable, or use another one" in ended.said
    check_no_blame([], ended.said)
    assert not run.left_over()


def in_own_mounts(command: str) -> list[str]:
    """The beginning of a command line whose process sees other mounts than all others."""
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine does not let an ordinary user have mounts of their own")
    return [*alone, "sh", "-c", f'mkdir out && {command} && exec "$@"', "sh"]

"""Real processes: an engine that was forked from a prepared parent is what a spawned one would have been, and leaves
nothing behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from bitbench.engines.left_over import end_left_over, left_over
from bitbench.engines.processes import ServerProcess
from bitbench.engines.starts import Preparation, StartCommand, Started, Starts
from bitbench.util.child_processes import engine_child_variables
from tests.busy_machine import wait_for

# An engine that says what it is, has a child in a session of its own, and stays.
ENGINE = """
import json, os, signal, sys, time
def facts():
    names = ("SIGINT", "SIGTERM", "SIGPIPE", "SIGCHLD")
    signals = {name: str(signal.getsignal(getattr(signal, name))) for name in names}
    return {
        "pid": os.getpid(), "leads": os.getsid(0) == os.getpid(), "argv": sys.argv[1:], "name": __name__,
        "env": {name: value for name, value in os.environ.items() if name != "BITBENCH_INSTANCE"},
        "cpus": sorted(os.sched_getaffinity(0)), "signals": signals, "cwd": os.getcwd(),
        "files": sorted(os.listdir("/proc/self/fd")), "hash": hash("a"), "json": "decimal" in sys.modules,
    }
child = os.fork()
if child == 0:
    os.setsid()
    time.sleep(600)
with open(sys.argv[1], "w") as file:
    json.dump({**facts(), "child": child}, file)
time.sleep(600)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "engine.py").write_text(ENGINE)
    return tmp_path


def command(place: Path, name: str, preparation: Preparation | None) -> StartCommand:
    words = (sys.executable, "-I", str(place / "engine.py"), str(place / name))
    environment = engine_child_variables({"OF_THE_STUDY": "yes", "KEY": f"secret of {name}"})
    return StartCommand(words, environment, f"secret of {name}", place / f"{name}.log", preparation)


def said(place: Path, name: str) -> dict[str, object]:
    assert wait_for(lambda: (place / name).exists() and (place / name).read_text().endswith("}")), [
        (file.name, file.read_text()) for file in place.glob("*.log")
    ]
    return dict(json.loads((place / name).read_text()))


def start(starts: Starts, place: Path, name: str, modules: tuple[str, ...] = ("decimal",)) -> Started:
    config = starts.of("config")
    started = config.start(command(place, name, Preparation(modules)))
    if started.kind == "spawned":
        said(place, name)
        config.is_ready(started.process)
    return started


@pytest.fixture
def forked(place: Path) -> Iterator[ServerProcess]:
    starts = Starts()
    with starts.block():
        start(starts, place, "first").process.stop()
        started = start(starts, place, "forked")
        assert started.kind == "preforked"
        said(place, "forked")
        yield started.process
        started.process.stop()


def test_a_forked_engine_has_what_a_spawned_one_has(place: Path) -> None:
    starts = Starts()
    with starts.block():
        started = [start(starts, place, name) for name in ("first", "second")]
        facts = [said(place, name) for name in ("first", "second")]
        assert [one.kind for one in started] == ["spawned", "preforked"]
        assert [one.process.pid for one in started] == [one.pop("pid") for one in facts]
        children = [one.pop("child") for one in facts]
        assert facts[1].pop("json")  # imported by its parent
        assert not facts[0].pop("json")
        assert facts[0].pop("hash") != facts[1].pop("hash")
        for one in facts:
            one["env"], one["argv"] = json.loads(json.dumps([one["env"], one["argv"]]).replace("second", "first"))
        assert facts[0] == facts[1]
        for one in started:
            one.process.stop()
        assert not any(psutil.pid_exists(int(str(pid))) for pid in children)


def test_starts_of_one_block_share_a_parent_and_blocks_do_not(place: Path) -> None:
    starts = Starts()
    seeds = []
    start(starts, place, "spawned").process.stop()
    for block in range(2):
        with starts.block():
            for name in (f"{block}a", f"{block}b"):
                started = start(starts, place, name)
                seeds.append(said(place, name)["hash"])
                started.process.stop()
    assert seeds[0] == seeds[1]
    assert seeds[2] == seeds[3] != seeds[0]
    outside = start(starts, place, "outside")
    assert outside.kind == "spawned"
    outside.process.stop()
    ours = [one for one in psutil.Process().children() if any("guardian.py" in word for word in one.cmdline())]
    assert not ours


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("import threading, time; threading.Thread(target=time.sleep, args=(600,)).start()", "2 threads run after"),
        ("import os; os._exit(3)", "the prepared parent ended with 3; see second-parent.log"),
    ],
    ids=["a thread", "an end"],
)
def test_a_parent_that_cannot_be_forked_is_not_used_and_the_reason_is_told(
    place: Path, module: str, reason: str
) -> None:
    site = place / "site"
    site.mkdir()
    (site / "imported.py").write_text(module)
    starts = Starts()
    with starts.block():
        for name in ("first", "second"):
            plain = command(place, name, Preparation(("imported",)))
            words = (sys.executable, "-P", *plain.words[2:])
            started = starts.of("config").start(replace(plain, words=words, env={**plain.env, "PYTHONPATH": str(site)}))
            said(place, name)
            starts.of("config").is_ready(started.process)
            started.process.stop()
            assert started.kind == "spawned"
    assert started.why_spawned is not None
    assert started.why_spawned.startswith(reason)


def guards(process: ServerProcess) -> dict[str, psutil.Process]:
    """From the engine up to the keeper of its parent."""
    engine = psutil.Process(process.pid)
    names = ("guardian", "keeper", "parent", "parent's guardian", "parent's keeper")
    return dict(zip(names, engine.parents(), strict=False)) | {"engine": engine}


@pytest.mark.parametrize(
    "killed",
    [
        ("engine",),
        ("guardian",),
        ("keeper",),
        ("keeper", "guardian"),
        ("parent",),
        ("parent", "keeper", "guardian"),
        ("parent's guardian",),
        ("parent's keeper", "parent's guardian"),
    ],
    ids=" and ".join,
)
def test_nothing_is_left_after_kill_9(forked: ServerProcess, killed: tuple[str, ...]) -> None:
    who = guards(forked)
    below = who["engine"].children(recursive=True)
    forked.freeze()
    for name in killed:
        who[name].kill()
    assert wait_for(lambda: forked.exit_code() is not None)
    assert forked.exit_code() == -signal.SIGKILL
    forked.stop()
    instance = [who["engine"], who["guardian"], who["keeper"], *below]
    assert wait_for(lambda: not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in instance))


DRIVER = """
import sys, time
from pathlib import Path
from bitbench.engines.processes import launch_logged_process
from bitbench.util.child_processes import engine_child_variables
place = Path(sys.argv[1])
engine = launch_logged_process([sys.executable, "-I", str(place / "engine.py"), str(place / "facts")],
      env=engine_child_variables({}), log_file=place / "log")
time.sleep(600)
"""


@pytest.mark.alone  # any other command would end it, too
def test_what_outlives_driver_and_guardians_is_found_and_ended(place: Path) -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(place)])
    try:
        facts = said(place, "facts")
        engine, child = psutil.Process(int(str(facts["pid"]))), psutil.Process(int(str(facts["child"])))
        guardian, keeper = engine.parents()[:2]
        assert not {engine.pid, child.pid} & left_over()
        for process in (driver, keeper, guardian, engine, child):
            os.kill(process.pid, signal.SIGSTOP)  # as if at one moment
        for process in (driver, keeper, guardian):
            os.kill(process.pid, signal.SIGKILL)
        driver.wait()
        assert wait_for(lambda: child.pid in left_over())
        assert end_left_over() >= 1
        assert wait_for(lambda: not child.is_running())
    finally:
        driver.kill()


def test_what_a_guardian_is_ending_is_left_to_it(place: Path) -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(place)])
    try:
        child = psutil.Process(int(str(said(place, "facts")["child"])))
        driver.kill()
        driver.wait()
        assert end_left_over() == 0
        assert not child.is_running()
    finally:
        driver.kill()

"""A worker in another Python, from its start to its end. The workers here are small scripts over the real other end."""

import os
import signal
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from bitbench.util.isolated import job_worker
from bitbench.util.isolated.job_process import WorkerFailed, get_last_event, run_job, run_short_job

ISOLATED = Path(job_worker.__file__).parent

WORKERS = [
    path
    for path in ISOLATED.parents[1].rglob("workers/*.py")
    if "run_as_job_worker(sys.argv[1], _work)" in path.read_text()
]


@pytest.mark.parametrize("script", WORKERS, ids=lambda path: path.stem)
def test_every_worker_finds_its_end_of_the_protocol_from_where_it_lies(
    script: Path, tmp_path: Path
) -> None:
    """With an empty job it says itself what it misses: a part of the job, or a library of its environment."""
    with pytest.raises(WorkerFailed) as failed:
        list(run_job(script, Path(sys.executable), {}, folder=tmp_path, log_file=tmp_path / "log"))
    assert (failed.value.cause or "").startswith(("KeyError: ", "ModuleNotFoundError: ")), (
        tmp_path / "log"
    ).read_text()


def worker(folder: Path, body: str) -> Path:
    script = folder / "worker.py"
    script.write_text(
        f"import os, sys, time\nsys.path.append({str(ISOLATED)!r})\nfrom job_worker import run_as_job_worker\n"
        f"def work(job, reports):\n{textwrap.indent(textwrap.dedent(body), '    ')}\n"
        "sys.exit(run_as_job_worker(sys.argv[1], work))\n"
    )
    return script


def run(folder: Path, body: str, **job: object) -> list[job_worker.Json]:
    return list(
        run_job(
            worker(folder, body), Path(sys.executable), job, folder=folder, log_file=folder / "log"
        )
    )


def test_events_come_in_order_and_the_last_one_is_what_the_work_returned(tmp_path: Path) -> None:
    body = """
        print("what a library prints")
        reports.send("step", number=job["first"], cwd=os.getcwd())
        return {"answer": job["first"] + 1}
    """
    assert run(tmp_path, body, first=41) == [
        {"event": "step", "number": 41, "cwd": str(tmp_path)},
        {"event": "done", "answer": 42},
    ]
    assert (tmp_path / "log").read_text() == "what a library prints\n"


def test_nothing_of_ours_leaks_into_the_other_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    body = 'return {name: os.environ.get(name) for name in ("PYTHONPATH", "HF_TOKEN", "HF_HUB_OFFLINE", *job["more"])}'
    (done,) = run(tmp_path, body, more=["TRITON_INTERPRET"])
    wanted = {"PYTHONPATH": None, "HF_TOKEN": None, "HF_HUB_OFFLINE": "1", "TRITON_INTERPRET": "1"}
    assert done == {"event": "done", **wanted}


def test_a_worker_knows_the_peak_of_its_own_memory(tmp_path: Path) -> None:
    body = """
        from job_worker import job_worker_peak_bytes
        before = job_worker_peak_bytes()
        len(b"x" * 2**26)
        return {"grown": job_worker_peak_bytes() - before}
    """
    (done,) = run(tmp_path, body)
    assert 2**25 < done["grown"] < 2**27


@pytest.mark.parametrize(
    ("body", "cause", "exit_code"),
    [
        ('raise ValueError("no such layer\\nand more")', "ValueError: no such layer", 1),
        (
            'from job_worker import JobError; raise JobError("the disk is full")',
            "the disk is full",
            1,
        ),
        ("os._exit(7)", None, 7),
        ("os.kill(os.getpid(), 9)", None, -signal.SIGKILL),
        ("os._exit(0)", None, 0),  # without a word: not done either
        (
            'os.write(reports._file.fileno(), b"{"); os.kill(os.getpid(), 9)',
            None,
            -signal.SIGKILL,
        ),  # in half a word
    ],
)
def test_another_end_is_a_failure_with_its_cause_where_the_worker_told_one(
    tmp_path: Path, body: str, cause: str | None, exit_code: int
) -> None:
    with pytest.raises(WorkerFailed) as failed:
        run(tmp_path, body)
    assert (failed.value.cause, failed.value.exit_code) == (cause, exit_code)


def test_a_job_in_a_folder_of_its_own_leaves_nothing_and_always_tells_a_cause(
    tmp_path: Path,
) -> None:
    script = worker(
        tmp_path,
        'print("of no use", flush=True)\nreports.send("place", place=os.getcwd())\nos._exit(7)',
    )
    events = run_short_job(script, Path(sys.executable), {})
    place = Path(next(events)["place"])
    assert place.exists()
    with pytest.raises(WorkerFailed, match="it ended with 7; its last output: of no use"):
        next(events)
    assert not place.exists()


def test_a_job_that_is_not_watched_gives_what_it_returned(tmp_path: Path) -> None:
    script = worker(tmp_path, 'reports.send("step")\nreturn {"answer": 42}')
    assert get_last_event(run_short_job(script, Path(sys.executable), {})) == {
        "event": "done",
        "answer": 42,
    }


def test_a_worker_can_be_given_other_variables(tmp_path: Path) -> None:
    script = worker(tmp_path, "return dict(os.environ)")
    done = get_last_event(run_short_job(script, Path(sys.executable), {}, env={"ONLY": "this"}))
    assert done["ONLY"] == "this"
    assert "PATH" not in done


@pytest.mark.timeout(120)
def test_a_worker_that_nobody_listens_to_any_more_is_ended(tmp_path: Path) -> None:
    script = worker(tmp_path, 'reports.send("pid", pid=os.getpid())\ntime.sleep(3600)')
    with closing(
        run_job(script, Path(sys.executable), {}, folder=tmp_path, log_file=tmp_path / "log")
    ) as events:
        pid = next(events)["pid"]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)

"""A mirror of a study: a run that is killed goes on without its folder, and only the running group is lost."""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bitbench.records.folder import StudyFolder
from bitbench.records.trial import Outcome
from bitbench.running.mirror import Mirror, PlaceAtUrl
from bitbench.running.offers import LogObserver
from bitbench.util.errors import StoreError, UsageError
from tests.chain.conftest import BITBENCH
from tests.chain.test_kill import kill_and_check
from tests.gallery import TWINS
from tests.length import by_length
from tests.object_servers import BUCKET, serving, why_not

KILLS = by_length(3, 30)
BLOCKS, TRIALS = by_length(3, 6), 3
STUDY = f"""
name: mirrored
engines:
  - {{engine: null, name: a, args: {{ttft: 10ms, tpot: 1ms}}}}
  - {{engine: null, name: b, args: {{ttft: 10ms, tpot: 2ms}}}}
workloads:
  - {{name: one, concurrency: 1, input_tokens: 8, output_tokens: 40}}
measure: {{starts: {BLOCKS}, trials: {TRIALS}}}
"""
needs_server = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with serving(tmp_path_factory.mktemp("s3")) as (variables, _):
        yield variables


def start(place: Path, url: str, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    with (place / "said.txt").open("ab") as said:
        command = [*BITBENCH, "run", "study.yaml", "--into", "out", "--mirror", url]
        return subprocess.Popen(
            command, cwd=place, env={**os.environ, **variables}, stdout=said, stderr=said
        )


def lines_of(url: str) -> list[bytes]:
    place = PlaceAtUrl(url)
    return place.read("trials.jsonl").splitlines() if "trials.jsonl" in place.list_files() else []


def trial_count(folder: StudyFolder) -> int:
    """A run that dies while it begins has a folder without lines, or none."""
    return len(folder.trials()) if folder.lock_file.exists() else 0


@needs_server
@pytest.mark.timeout(3600)
def test_killed_runs_resume_from_the_mirror(
    tmp_path: Path, server: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "study.yaml").write_text(STUDY)
    rng, kills, studies = random.Random(37), 0, 0
    folder = StudyFolder(tmp_path / "out")
    kept: list[bytes] = []
    while True:
        url = f"s3://{BUCKET}/killed/{studies}"
        run = start(tmp_path, url, server)
        if kills < KILLS:
            wanted = len(kept) + rng.randint(0, 4)
            until = time.monotonic() + 300
            while run.poll() is None and trial_count(folder) < wanted and time.monotonic() < until:
                time.sleep(0.05)
            time.sleep(rng.uniform(0, 1.5))
        if kills < KILLS and run.poll() is None:
            kills += 1
            kill_and_check(run)
            measured = folder.trials() if folder.lock_file.exists() else []
        else:
            assert run.wait(300) == 0, (tmp_path / "said.txt").read_text()
            measured = folder.trials()
        now = lines_of(url)
        assert now[: len(kept)] == kept, "the mirror lost what it had"
        blocks = {trial.block for trial in measured[len(now) :]}
        assert len(blocks) <= 1, "more than the group that was running is lost"
        kept = now
        if run.returncode == 0:
            assert len(now) == len(measured)
            check_complete(folder)
            studies, kept = studies + 1, []
            if kills == KILLS:
                return
        shutil.rmtree(folder.path, ignore_errors=True)


def check_complete(folder: StudyFolder) -> None:
    trials = folder.trials()
    assert [trial.id for trial in trials] == [
        f"t{number:05d}" for number in range(1, len(trials) + 1)
    ]
    for block in range(BLOCKS):
        for engine in "ab":
            outcomes = [
                trial.outcome
                for trial in trials
                if (trial.kind, trial.point.config.engine, trial.block, trial.turn)
                == ("measured", engine, block, 0)
            ]
            assert outcomes.count(Outcome.OK) >= TRIALS or Outcome.CLIENT_BOUND in outcomes, (
                block,
                engine,
                outcomes,
            )
    assert all(folder.requests_of(trial).num_rows for trial in trials if trial.requests_file)


@needs_server
def test_a_server_that_vanishes_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    (tmp_path / "s3").mkdir()
    with serving(tmp_path / "s3") as (variables, process):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        run = start(tmp_path, f"s3://{BUCKET}/vanishes", variables)
        until = time.monotonic() + 300
        while (
            trial_count(StudyFolder(tmp_path / "out")) == 0
            and run.poll() is None
            and time.monotonic() < until
        ):
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        assert run.wait(300) == 0, (tmp_path / "said.txt").read_text()
    said = (tmp_path / "said.txt").read_text()
    assert "cannot be reached" in said
    assert variables["AWS_SECRET_ACCESS_KEY"] not in said.replace(str(tmp_path), "")
    check_complete(StudyFolder(tmp_path / "out"))


@needs_server
def test_an_unreachable_server_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    run = start(
        tmp_path,
        f"s3://{BUCKET}/x?endpoint_override=127.0.0.1:9&scheme=http",
        {"AWS_ACCESS_KEY_ID": "k-e-y"},
    )
    assert run.wait(120) == 2 or run.returncode
    said = (tmp_path / "said.txt").read_text()
    assert "cannot be reached" in said
    assert "k-e-y" not in said
    assert trial_count(StudyFolder(tmp_path / "out")) == 0


def mirrored(tmp_path: Path, folder: str) -> Mirror:
    (tmp_path / "mirror").mkdir(exist_ok=True)
    return Mirror((tmp_path / "mirror").as_uri(), StudyFolder(tmp_path / folder), LogObserver())


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A study in a mirror; `older` is a copy of it with fewer trials."""
    for name in ("one", "older"):
        shutil.copytree(TWINS, tmp_path / name, ignore=shutil.ignore_patterns("report"))
    lines = (tmp_path / "older" / "trials.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "older" / "trials.jsonl").write_text("".join(lines[:7]))
    mirrored(tmp_path, "one").begin()
    return tmp_path


def test_an_absent_folder_and_an_older_one_are_brought_up_to_date(copied: Path) -> None:
    wanted = StudyFolder(copied / "one").trials()
    for name in ("older", "absent"):
        mirrored(copied, name).fetch()
        folder = StudyFolder(copied / name)
        assert folder.trials() == wanted
        assert all(folder.requests_of(trial) for trial in wanted if trial.requests_file)


def test_a_newer_folder_is_copied(copied: Path) -> None:
    shutil.rmtree(copied / "mirror")
    mirrored(copied, "older").begin()
    newer = mirrored(copied, "one")
    newer.fetch()
    newer.begin()
    assert (copied / "mirror" / "trials.jsonl").read_bytes() == (
        TWINS / "trials.jsonl"
    ).read_bytes()


def test_records_of_another_run_are_refused_and_left_alone(copied: Path) -> None:
    lines = (copied / "older" / "trials.jsonl").read_text().splitlines(keepends=True)
    (copied / "older" / "trials.jsonl").write_text(
        "".join([*lines[:-1], lines[-1].replace('"ok"', '"invalid"')])
    )
    with pytest.raises(StoreError, match="another run"):
        mirrored(copied, "older").fetch()
    lock = StudyFolder(copied / "one").lock_file
    lock.write_text(lock.read_text().replace('"created_at": "20', '"created_at": "19'))
    with pytest.raises(StoreError, match="another run"):
        mirrored(copied, "one").fetch()
    assert (copied / "mirror" / "trials.jsonl").read_bytes() == (
        TWINS / "trials.jsonl"
    ).read_bytes()


def test_a_second_writer_is_noticed_and_not_overwritten(copied: Path) -> None:
    first = mirrored(copied, "one")
    first.begin()
    theirs = (copied / "mirror" / "trials.jsonl").read_bytes() + b'{"id": "t99999"}\n'
    (copied / "mirror" / "trials.jsonl").write_bytes(theirs)
    with (copied / "one" / "trials.jsonl").open("ab") as own:
        own.write(b'{"id": "t88888"}\n')
    first.push()
    first.push(is_last=True)
    assert (copied / "mirror" / "trials.jsonl").read_bytes() == theirs


def test_files_of_a_person_stay_and_names_do_not_escape(copied: Path) -> None:
    (copied / "one" / "secrets.txt").write_text("mine")
    mirrored(copied, "one").begin()
    assert not (copied / "mirror" / "secrets.txt").exists()
    (copied / "mirror" / "evil.sh").write_text("x")
    (copied / "own").mkdir()
    (copied / "own" / "study.yaml").write_text("mine")
    with pytest.raises(StoreError, match="another run"):
        mirrored(copied, "own").fetch()
    mirrored(copied, "absent").fetch()
    assert not (copied / "absent" / "evil.sh").exists()


@pytest.mark.parametrize("url", ["gopher://x", "s3://key:secret@bucket/x", "nowhere"])
def test_places_that_cannot_be_opened(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        PlaceAtUrl(url)
    assert "secret" not in str(refused.value)

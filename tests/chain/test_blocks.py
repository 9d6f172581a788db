"""A study in parts: one block each, as tasks of a job array measure them, joined into one study."""

import json
import signal
import subprocess
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from bitbench.machine.workplace import Workplace
from bitbench.records.folder import StudyFolder
from bitbench.records.trial import Outcome, TrialRecord
from bitbench.running.blocks import MACHINE_VARIABLE, join_parts, measure_block
from bitbench.running.offers import LogObserver
from bitbench.running.runner import measure_study
from bitbench.study.study import Study
from bitbench.util.errors import NotComparableError, StoreError, UsageError
from tests.chain.conftest import BITBENCH
from tests.forked import bitbench_process

BLOCKS, TRIALS = 2, 2
# Half a second to the first token: a client that is a few milliseconds late on a busy machine changes nothing.
STUDY = {
    "name": "parts",
    "engines": [
        {"engine": "null", "name": name, "args": {"ttft": "500ms", "tpot": "1ms"}}
        for name in ("a", "b")
    ],
    "workloads": [{"name": "w", "concurrency": 1, "input_tokens": 4, "output_tokens": 8}],
    "measure": {"starts": BLOCKS, "trials": TRIALS},
}


def measure(place: Path, block: int | None, **changes: object) -> StudyFolder:
    study = Study.model_validate({**STUDY, **changes})
    on = None if block is None else partial(measure_block, block)
    return measure_study(study, place, LogObserver(), Workplace(), on=on)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("parts")
    with pytest.MonkeyPatch.context() as patch:
        for block in range(BLOCKS):
            patch.setenv(MACHINE_VARIABLE, f"n{block}")
            measure(place / f"p{block}", block)
    return [place / f"p{block}" for block in range(BLOCKS)]


def measured(folder: StudyFolder) -> list[TrialRecord]:
    return [trial for trial in folder.trials() if trial.kind == "measured"]


def what_was_asked(folder: StudyFolder) -> Counter[tuple[object, ...]]:
    """Each trial that counts and its requests, without times, ids and machines."""
    asked: Counter[tuple[object, ...]] = Counter()
    for trial in measured(folder):
        if trial.counts:
            rows = folder.requests_of(trial)
            lengths = (
                tuple(rows["input_tokens"].to_pylist()),
                tuple(rows["output_tokens"].to_pylist()),
            )
            asked[trial.point.name, trial.block, trial.requests, *lengths] += 1
    return asked


def test_joined_parts_are_the_study_of_one_machine(parts: list[Path], tmp_path: Path) -> None:
    joined, alone = join_parts(parts, tmp_path / "joined"), measure(tmp_path / "alone", None)
    assert what_was_asked(joined) == what_was_asked(alone)
    assert len(what_was_asked(joined)) == 2 * BLOCKS
    records, others = joined.read(), alone.read()
    assert records.plan == others.plan
    assert {(one.block, one.config, one.host) for one in records.instances} == {
        (one.block, one.config, f"n{one.block}") for one in others.instances
    }
    assert set(records.lock.hosts) == {"n0", "n1"}


def test_join_again_adds_only_what_is_new(parts: list[Path], tmp_path: Path) -> None:
    folder = join_parts(parts[:1], tmp_path / "joined")
    assert {trial.block for trial in folder.trials()} == {0}
    lines = [folder.path / f"{name}.jsonl" for name in ("trials", "instances")]
    before = [path.read_bytes() for path in lines]
    join_parts(parts[:1], folder.path)
    assert [path.read_bytes() for path in lines] == before
    join_parts(parts, folder.path)
    assert [path.read_bytes().startswith(old) for path, old in zip(lines, before, strict=True)] == [
        True,
        True,
    ]
    assert {trial.block for trial in folder.trials()} == {0, 1}
    assert len(folder.trials()) == sum(len(StudyFolder(part).trials()) for part in parts)
    assert all(
        (folder.path / str(instance.log_file)).stat().st_size for instance in folder.instances()
    )


def test_a_killed_join_is_completed(parts: list[Path], tmp_path: Path) -> None:
    whole = join_parts(parts, tmp_path / "joined")
    expected = what_was_asked(whole)
    text = (whole.path / "trials.jsonl").read_text().splitlines(keepends=True)
    (whole.path / "trials.jsonl").write_text(
        "".join(text[:-2]) + text[-2][:40]
    )  # as a kill in an append leaves it
    assert what_was_asked(join_parts(parts, whole.path)) == expected


def altered(part: Path, place: Path, **changes: object) -> Path:
    """A copy with other facts in its lock."""
    subprocess.run(["cp", "-r", part, place], check=True)
    lock = json.loads((place / "lock.json").read_text())
    (place / "lock.json").write_text(json.dumps({**lock, **changes}))
    return place


def test_parts_that_do_not_belong_together_are_refused(parts: list[Path], tmp_path: Path) -> None:
    lock = json.loads((parts[1] / "lock.json").read_text())
    host = {**lock["host"], "cpu_model": "another"}
    other_class = altered(parts[1], tmp_path / "class", host=host, hosts={"n1": host})
    with pytest.raises(NotComparableError, match="cpu_model"):
        join_parts([parts[0], other_class], tmp_path / "x")
    twice = altered(parts[0], tmp_path / "twice")
    with pytest.raises(StoreError, match="block 0"):
        join_parts([parts[0], twice], tmp_path / "x")
    unnamed = altered(parts[0], tmp_path / "unnamed", hosts={"local": lock["host"]})
    with pytest.raises(StoreError, match="which machine"):
        join_parts([unnamed], tmp_path / "x")
    other_study = measure(tmp_path / "other", 1, seed=7)
    with pytest.raises(StoreError, match="`seed` differs"):
        join_parts([parts[0], other_study.path], tmp_path / "x")
    assert not (tmp_path / "x").exists()  # refused before anything is written


def test_the_same_block_from_two_machines_is_not_mixed(parts: list[Path], tmp_path: Path) -> None:
    folder = join_parts(parts, tmp_path / "joined")
    again = measure(tmp_path / "again", 1)
    with pytest.raises(StoreError, match="block 1"):
        join_parts([again.path], folder.path)


def test_a_block_that_cannot_be_measured_alone_is_refused(
    parts: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="at most 2 blocks"):
        measure(tmp_path / "x", 2)
    with pytest.raises(UsageError, match="budget"):
        measure(tmp_path / "x", 0, measure={"budget": "1m"})
    with pytest.raises(StoreError, match="contains block 0"):
        measure(parts[0], 1)


@pytest.mark.parametrize("second", ["n1", "n2"], ids=["same machine", "another machine"])
def test_a_requeued_task_resumes_its_part(
    second: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On its machine it goes on; on another one the block is repeated, so that it has one machine."""
    (tmp_path / "study.yaml").write_text(json.dumps(STUDY))
    part = StudyFolder(tmp_path / "part")
    monkeypatch.setenv(MACHINE_VARIABLE, "n1")
    task = subprocess.Popen(
        [*BITBENCH, "run", "study.yaml", "--block", "1", "--into", "part"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not measured(part) and time.monotonic() < deadline:
        time.sleep(0.02)
    task.send_signal(signal.SIGTERM)  # as a scheduler ends a task that it requeues
    task.wait()
    begun = measured(part)
    assert begun
    monkeypatch.setenv(MACHINE_VARIABLE, second)
    done = bitbench_process("run", "study.yaml", "--block", "1", "--into", "part", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    counts = Counter(trial.point.config.engine for trial in measured(part) if trial.counts)
    assert counts["a"] >= TRIALS
    assert counts["b"] >= TRIALS
    kept = {trial.id for trial in measured(part) if trial.counts} & {trial.id for trial in begun}
    instances = part.instances()
    if second == "n1":
        assert kept == {trial.id for trial in begun if trial.counts}
        assert {instance.host for instance in instances} == {"n1"}
    else:
        assert not kept
        assert [one.host for one in instances if one.outcome is Outcome.LOST] == ["n1"]
        counted = {trial.instance_id for trial in measured(part) if trial.counts}
        assert {one.host for one in instances if one.id in counted} == {"n2"}

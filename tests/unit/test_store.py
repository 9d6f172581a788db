"""A study folder loses nothing that had ended and keeps nothing that had not."""

import contextlib
import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

from bitbench.records.folder import StudyFolder
from bitbench.records.request_rows import RequestParts
from bitbench.records.trial import Outcome, TrialRecord
from bitbench.study.plan import Config, Point
from bitbench.study.workload import BUILT_IN_WORKLOADS
from bitbench.util.errors import StoreError
from tests.strangers import KINDS, Trap
from tests.support.synthetic import make_instance, make_lock, make_plan, make_trial, request_parts

DRAFT = TrialRecord(
    id="",
    point=Point(config=Config(variant="none", engine="e"), workload="w"),
    block=0,
    index=0,
    instance_id="i0001",
    started_at="2026-01-01T00:00:00+00:00",
    duration_s=1.0,
    outcome=Outcome.OK,
)
ROWS = pa.table({"request": pa.array([0, 1], pa.int32())})


def a_study(path: Path) -> StudyFolder:
    """What a run has begun."""
    folder = StudyFolder(path)
    with folder.open_writer() as writer:
        writer.write_study("name: begun\n")
        writer.write_lock(make_lock(make_plan(["a"], [BUILT_IN_WORKLOADS["base"]])))
    return folder


def test_what_is_no_study_folder_is_told_what_it_is_instead(tmp_path: Path) -> None:
    a_study(tmp_path / "past" / "one")
    (tmp_path / "bare").mkdir()
    (tmp_path / "s.yaml").touch()
    for name, words in (
        ("none", "it does not exist; `bitbench run STUDY --into "),
        ("s.yaml", "it is a file; give the folder that `bitbench run "),
        ("past", f"it contains some; give one of them, such as {tmp_path / 'past' / 'one'}"),
        ("bare", "(no study.yaml in it); `bitbench run STUDY --into "),
    ):
        with pytest.raises(StoreError) as refused:
            StudyFolder.existing(tmp_path / name)
        assert "is not a study folder" in str(refused.value)
        assert words in str(refused.value)


def test_a_trial_is_there_with_its_rows_once_it_was_appended(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    with folder.open_writer() as writer:
        record = writer.append_trial(DRAFT, RequestParts.of(ROWS))
    assert folder.trials() == [record]
    assert record.id == "t00001"
    assert folder.requests_of(record, ["request"]) == ROWS


def test_rows_of_several_processes_are_moved_in_and_read_as_one_table(tmp_path: Path) -> None:
    """Also where the study is on another file system than the file."""
    folder = a_study(tmp_path / "s")
    with folder.open_writer() as writer:
        for place in (folder.requests, Path("/dev/shm")):
            (packed,) = RequestParts.of(ROWS.slice(1)).parts
            assert isinstance(packed, bytes)
            part = place / f"rows.parquet.{'a' * 16}.partial"
            part.write_bytes(packed)
            record = writer.append_trial(
                DRAFT, RequestParts((*RequestParts.of(ROWS.slice(0, 1)).parts, part))
            )
            assert folder.requests_of(record, ["request"]) == ROWS
            assert not part.exists()
    with folder.open_writer():
        assert len(list(folder.requests.iterdir())) == 4


def test_a_torn_line_is_cut_and_the_next_trial_follows(tmp_path: Path) -> None:
    folder = a_study(tmp_path / "s")
    with folder.open_writer() as writer:
        writer.append_trial(DRAFT, RequestParts.of(ROWS))
    with (folder.path / "trials.jsonl").open("a") as file:
        file.write('{"format": 1, "id": "t000')
    assert len(folder.trials()) == 1
    with folder.open_writer() as writer:
        writer.append_trial(DRAFT, RequestParts.of(ROWS))
    assert [trial.id for trial in folder.trials()] == ["t00001", "t00002"]


def test_rows_without_a_trial_are_dropped_on_the_next_run_and_nothing_else(tmp_path: Path) -> None:
    folder = a_study(tmp_path / "s")
    with folder.open_writer() as writer:
        writer.append_trial(DRAFT, RequestParts.of(ROWS))
    ours = ("requests/t00002.parquet", "requests/t00003.parquet.0123456789abcdef.partial", "quality/q0001.parquet",
            "requests/t00002.1.parquet", "requests/rows.parquet.0123456789abcdef.partial",
            "lock.json.0123456789abcdef.partial")  # fmt: skip
    theirs = ("requests/mine.txt", "requests/t00002.parquet.mine", "requests/all.parquet", "quality/mine.parquet",
              "mine.partial", "requests/0123456789abcdef.partial")  # fmt: skip
    for name in (*ours, *theirs):
        (folder.path / name).write_bytes(b"half")
    (folder.requests / "t00009.parquet").mkdir()
    with folder.open_writer():
        pass
    assert not any((folder.path / name).exists() for name in ours)
    assert all(
        (folder.path / name).exists()
        for name in (*theirs, "requests/t00001.parquet", "requests/t00009.parquet")
    )


def test_where_no_study_is_nothing_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "requests").mkdir()
    (tmp_path / "requests" / "mine.txt").write_text("mine")
    with StudyFolder(tmp_path).open_writer():
        pass
    assert (tmp_path / "requests" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "name", ["trials.jsonl", "quality.jsonl", "requests/t00001.parquet", "report/report.md"]
)
def test_what_a_run_left_is_not_taken_over_without_its_lock(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("left")
    said = f"contains {name.removesuffix('/report.md')} but no lock.json.*restore lock.json, or give another folder"
    with pytest.raises(StoreError, match=said), StudyFolder(tmp_path).open_writer():
        pass
    assert (tmp_path / name).read_text() == "left"


@pytest.mark.parametrize(
    "name", ["../outside.parquet", "/etc/passwd", "requests/../../outside.parquet"]
)
def test_a_record_cannot_name_rows_outside_of_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "outside.parquet").write_bytes(b"")
    folder = a_study(tmp_path / "s")
    with pytest.raises(StoreError, match="names rows outside of it"):
        folder.requests_of(DRAFT.model_copy(update={"requests_file": name}))


@pytest.mark.parametrize("trap", KINDS)
def test_a_trap_instead_of_a_record_is_read_or_refused_but_never_waited_for(
    tmp_path: Path, trap: Trap
) -> None:
    folder, outside = a_study(tmp_path / "s"), tmp_path / "outside"
    outside.mkdir()
    trap(folder.lock_file, outside)
    with contextlib.suppress(StoreError):
        folder.lock()


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    with (
        folder.open_writer(),
        pytest.raises(StoreError, match="another bitbench is writing"),
        folder.open_writer(),
    ):
        pass


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "No space left on device; free some space"),
        (errno.EDQUOT, "Disk quota exceeded; free some space"),
        (errno.EROFS, "Read-only file system; make the folder writable"),
        (errno.EIO, "Input/output error; use another folder"),
    ],
)
def test_a_disk_that_takes_nothing_is_named_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, advice: str
) -> None:
    folder = a_study(tmp_path / "s")

    def refuse(_: int) -> None:
        raise OSError(code, os.strerror(code))

    with folder.open_writer() as writer:
        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(StoreError, match=f"t00001.parquet cannot be written: {advice}"):
            writer.append_trial(DRAFT, RequestParts.of(ROWS))
        with pytest.raises(StoreError, match=f"trials.jsonl cannot be written: {advice}"):
            writer.append_trial(DRAFT, None)
    assert list(folder.requests.iterdir()) == []


def test_instance_ids_are_never_used_twice_even_after_a_kill(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    with folder.open_writer() as writer:
        first, _ = writer.new_instance()
    with folder.open_writer() as writer:
        second, log = writer.new_instance()
    assert (first, second) == ("i0001", "i0002")
    assert log.exists()


def test_instance_ids_go_on_where_the_logs_were_removed(tmp_path: Path) -> None:
    folder = a_study(tmp_path / "s")
    with folder.open_writer() as writer:
        writer.append_instance(make_instance(DRAFT.point.config, 0, id="i0007"))
    with folder.open_writer() as writer:
        assert writer.new_instance()[0] == "i0008"


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    with folder.open_writer() as writer:
        writer.append_trial(DRAFT, None)
    path = folder.path / "trials.jsonl"
    path.write_text("garbage\n" + path.read_text())
    with pytest.raises(StoreError, match=r"trials\.jsonl:1"):
        folder.trials()


def test_a_newer_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    with folder.open_writer() as writer:
        writer.append_trial(DRAFT.model_copy(update={"format": 99}), None)
    with pytest.raises(StoreError, match="newer bitbench"):
        folder.trials()


def test_a_folder_without_a_study_is_no_study_folder(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a study folder"):
        StudyFolder.existing(tmp_path)


def test_a_folder_is_read_once_into_one_object(tmp_path: Path) -> None:
    plan = make_plan(["a"], [BUILT_IN_WORKLOADS["base"]])
    folder = StudyFolder(tmp_path)
    with folder.open_writer() as writer:
        writer.write_lock(make_lock(plan))
        kept = writer.append_trial(
            make_trial(plan.points[0], 0, 0), request_parts({"planned_s": 0.0, "chunk_s": [1.0]})
        )
    records = folder.read("as it is called")
    assert (records.name, records.plan, records.trials) == ("as it is called", plan, [kept])
    assert records.requests_of(kept, ["request"]).column_names == ["request"]
    assert records.counted(plan.points[0]) == [kept]


def test_rows_that_were_not_kept_are_named(tmp_path: Path) -> None:
    point = make_plan(["a"], [BUILT_IN_WORKLOADS["base"]]).points[0]
    folder = StudyFolder(tmp_path)
    with folder.open_writer() as writer:
        trial = writer.append_trial(
            make_trial(point, 0, 0), request_parts({"planned_s": 0.0, "chunk_s": [1.0]})
        )
    (tmp_path / str(trial.requests_file)).unlink()
    with pytest.raises(StoreError, match=f"the rows of trial {trial.id} were not kept"):
        folder.requests_of(trial)


def test_a_lock_is_json_for_people_with_its_format(tmp_path: Path) -> None:
    plan = make_plan(["ä"], [BUILT_IN_WORKLOADS["base"]])
    lock = make_lock(plan)
    with StudyFolder(tmp_path).open_writer() as writer:
        writer.write_lock(lock)
    text = (tmp_path / "lock.json").read_text(encoding="utf-8")
    assert text.startswith('{\n  "format": 1,\n')
    assert '"ä"' in text
    assert StudyFolder(tmp_path).lock() == lock


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"format": 99, "plan": {}}', "was written by a newer bitbench"),
        ('{"bitbench": "0.1.0"', "is damaged and cannot be read"),
        ("[]", "is damaged and cannot be read"),
        ('{"bitbench": "0.1.0"}', "is damaged and cannot be read"),
        ("\udcff", "is damaged and cannot be read"),
    ],
)
def test_a_lock_that_cannot_be_read_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "lock.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(StoreError, match=f"lock.json {said}"):
        StudyFolder(tmp_path).lock()


def test_a_number_is_not_given_again_where_a_line_was_removed(tmp_path: Path) -> None:
    folder = a_study(tmp_path / "s")
    with folder.open_writer() as writer:
        writer.write_lock(make_lock(make_plan(["a"], [BUILT_IN_WORKLOADS["base"]])))
        for _ in range(3):
            writer.append_trial(DRAFT, None)
    path = folder.path / "trials.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    with folder.open_writer() as writer:
        assert writer.append_trial(DRAFT, None).id == "t00004"

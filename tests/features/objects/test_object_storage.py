"""Studies in an object store: exactly once, one writer, refused where a server would not keep that, quick to query."""

import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bitbench.features.objects.remote_folder import (
    TABLES,
    RemoteFolder,
    RemoteWriter,
    compact_remote_tables,
    pull,
    pull_remote_study,
    write_remote_tables,
)
from bitbench.features.objects.store import ObjectExistsError, ObjectStore
from bitbench.features.query.studies import Studies
from bitbench.measure.offers import folder_at
from bitbench.records.arrow_tables import study_arrow_table
from bitbench.records.folder import StudyFolder
from bitbench.util.errors import ExitCode, StoreError, UsageError
from tests.command_line import bitbench
from tests.features.objects.killed_writers import kill_writers
from tests.features.objects.many_studies import ALL_TRIALS, ROWS_EACH, write_studies
from tests.features.objects.object_servers import BUCKET, careless_server, serving, why_not
from tests.gallery import TWINS
from tests.length import by_length

pytestmark = pytest.mark.skipif(why_not("any") is not None, reason=why_not("any") or "")
SOURCE = StudyFolder(TWINS).read()


@pytest.fixture(scope="module", params=["moto", "seaweedfs"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    if (reason := why_not(request.param)) is not None:
        pytest.skip(reason)
    with serving(request.param, tmp_path_factory.mktemp(request.param)) as variables:
        yield variables


@pytest.fixture
def place(server: dict[str, str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A place of this test alone."""
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{abs(hash(request.node.name))}"


def fill(writer: RemoteWriter, trials: int) -> None:
    writer.write_study("name: twins\n")
    writer.write_lock(SOURCE.lock)
    writer.new_instance()
    writer.append_instance(SOURCE.instances[0])
    for trial in SOURCE.trials[:trials]:
        writer.append_trial(trial, SOURCE.requests_of(trial, None))


def test_a_study_is_resumed_from_another_machine(place: str, tmp_path: Path) -> None:
    first = RemoteFolder(f"{place}/twins", tmp_path / "one")
    with first.writing() as writer:
        fill(writer, 3)
    second = RemoteFolder(f"{place}/twins", tmp_path / "two")
    with second.writing() as writer:
        assert second.lock() == SOURCE.lock
        assert [one.id for one in second.trials()] == ["t00001", "t00002", "t00003"]
        assert writer.new_instance()[0] == "i0002"
        trial = SOURCE.trials[3]
        assert writer.append_trial(trial, SOURCE.requests_of(trial, None)).id == "t00004"
        writer.write_lock(SOURCE.lock.model_copy(update={"bitbench": "later"}))
    with first.writing():
        assert len(first.trials()) == 4
        assert first.lock() == SOURCE.lock.model_copy(update={"bitbench": "later"})
        for kept, wanted in zip(first.trials(), SOURCE.trials, strict=False):
            assert first.requests_of(kept).equals(SOURCE.requests_of(wanted, None))


def test_two_writers_one_wins(place: str, tmp_path: Path) -> None:
    """Eight at once, each as if on a machine of its own."""

    refused: list[str] = []

    def write(number: int) -> str:
        try:
            with RemoteWriter(RemoteFolder(f"{place}/race", tmp_path / str(number)), lasts_s=2) as writer:
                fill(writer, 1)
                until = time.monotonic() + 60
                while len(refused) < 7 and time.monotonic() < until:  # longer than the lease lasts: it is renewed
                    time.sleep(0.1)
                return "won"
        except StoreError as error:
            refused.append(str(error))
            return "refused"

    with ThreadPoolExecutor(8) as racers:
        assert sorted(racers.map(write, range(8))) == ["refused"] * 7 + ["won"]
    assert all("another bitbench" in said for said in refused)
    folder = pull_remote_study(f"{place}/race", tmp_path / "pulled")
    assert [one.id for one in folder.trials()] == ["t00001"]


def test_who_was_stopped_for_longer_than_the_lease_writes_nothing_more(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bitbench.features.objects.store._this_machine", lambda: str(random.random()))
    old = RemoteWriter(RemoteFolder(f"{place}/stopped", tmp_path / "old"), lasts_s=2)
    old.__enter__()
    fill(old, 1)
    old._lease._ended.set()  # as if the process were stopped: no renewal any more
    began = time.monotonic()
    with RemoteWriter(RemoteFolder(f"{place}/stopped", tmp_path / "new"), lasts_s=2) as new:
        assert time.monotonic() - began > 1.5  # it watched the lease for as long as that lasts
        assert new._lease.state.epoch == 2
        new.append_trial(SOURCE.trials[1], None)
        with pytest.raises(StoreError, match="took over"):
            old.append_trial(SOURCE.trials[2], None)
    with pytest.raises(StoreError, match="took over"):
        old.__exit__(None, None, None)
    found = pull_remote_study(f"{place}/stopped", tmp_path / "pulled").trials()
    assert [(one.id, one.started_at) for one in found] == [
        ("t00001", SOURCE.trials[0].started_at),
        ("t00002", SOURCE.trials[1].started_at),
    ]


def test_killed_writers_lose_nothing_and_double_nothing(place: str, tmp_path: Path, server: dict[str, str]) -> None:
    assert kill_writers(place, tmp_path, server, by_length(20, 1000), random.Random(18)) >= 1


def test_a_server_that_ignores_conditions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with careless_server() as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(StoreError, match="ignores conditional writes"), folder_at("s3://b/x", tmp_path).writing():
            pass


def test_an_answer_that_was_lost_on_the_way_is_no_second_writer(place: str) -> None:
    store = ObjectStore(place)
    assert store.create("x", b"mine") == store.create("x", b"mine")
    with pytest.raises(ObjectExistsError):
        store.create("x", b"another's")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("trials/t00001.json", {"record": {"id": "t00002"}, "rows": None}, "its id is not its name"),
        ("trials/t00001.json", {"record": {"id": "t00001", "requests_file": "../x"}, "rows": "0" * 64}, "names rows"),
        (
            "trials/t00001.json",
            {"record": {"id": "t00001", "requests_file": "requests/t00001.parquet"}, "rows": "/"},
            "as",
        ),
        ("trials/t00001.json", [], "is damaged"),
    ],
)
def test_objects_of_a_stranger_are_refused(place: str, tmp_path: Path, name: str, content: object, words: str) -> None:
    store = ObjectStore(f"{place}-{abs(hash(json.dumps(content)))}")
    store.write(name, json.dumps(content).encode())
    store.write("logs/evil.sh", b"x")
    store.write("profiles/other.json", b"x")
    with pytest.raises(StoreError, match=words):
        pull(store, tmp_path / "pulled")
    assert not [path for path in tmp_path.rglob("*") if path.name in ("evil.sh", "other.json", "x")]


def test_a_query_over_compacted_studies_is_complete(place: str) -> None:
    write_studies(ObjectStore(place), 60)
    assert Studies(place).query(ALL_TRIALS)[1] == [(60, 60 * ROWS_EACH)]
    compact_remote_tables(ObjectStore(place))
    assert Studies(place).query(ALL_TRIALS)[1] == [(60, 60 * ROWS_EACH)]
    newer = {table: study_arrow_table(SOURCE, table) for table in TABLES}
    write_remote_tables(ObjectStore(place), "study-0007", newer)
    assert Studies(place).query(ALL_TRIALS)[1] == [(60, 59 * ROWS_EACH + len(SOURCE.trials))]


def test_the_commands(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with RemoteFolder(f"{place}/twins", tmp_path / "home").writing() as writer:
        fill(writer, 4)
    said = bitbench(capsys, "query", place, "SELECT folder, count(*) AS n FROM trials GROUP BY ALL", "--format", "csv")
    assert said.out == "folder,n\ntwins,4\n"
    assert "bitbench pull" in bitbench(capsys, "query", place, "SELECT * FROM requests").err
    named_like_a_table = bitbench(
        capsys, "query", place, "SELECT max(kernels) AS kernels FROM instances", "--format", "csv"
    )
    assert named_like_a_table.out.startswith("kernels")
    listed = bitbench(capsys, "query", place).out
    assert "instances  " in listed
    assert "\nrequests  " not in listed
    said = bitbench(capsys, "pull", f"{place}/twins")
    assert (said.exit_code, "4 trials" in said.out) == (ExitCode.DONE, True)
    assert len(StudyFolder(tmp_path / "twins").read().trials) == 4
    assert bitbench(capsys, "pull", f"{place}/twins").exit_code == ExitCode.REFUSED
    assert bitbench(capsys, "pull", f"{place}/none").exit_code == ExitCode.REFUSED
    for wrong in ("s3://bucket", "ftp://x/y"):
        with pytest.raises(UsageError):
            folder_at(wrong, tmp_path)

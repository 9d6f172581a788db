"""Published studies: what is published can be checked by a stranger, and what was changed is refused."""

import json
import os
import random
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from time import process_time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bitbench.features.publish.archive import FIGURES, MANIFEST, publish_study, unpack_study
from bitbench.features.publish.checking import verify_study
from bitbench.features.publish.cleaning import hide_places
from bitbench.records.folder import StudyFolder
from bitbench.util.errors import ExitCode, StoreError
from tests.command_line import bitbench
from tests.features.publish.archives import (
    Files,
    bomb,
    edited,
    files_of,
    forged,
    write_archive,
    write_entries,
)
from tests.gallery import TWINS
from tests.json_answer import read_answer
from tests.support.study_folders import write_folder


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(publish_study(TWINS, tmp_path_factory.mktemp("published") / "twins.tar.gz").file)


def published(folder: Path, place: Path) -> Files:
    return files_of(Path(publish_study(folder, place / "demo.tar.gz").file))


def unpacked(folder: Path, place: Path) -> Path:
    into = place / "unpacked"
    shutil.rmtree(into, ignore_errors=True)
    unpack_study(Path(publish_study(folder, place / "demo.tar.gz").file), into)
    return into


def test_every_figure_follows_from_the_records(twins: Path) -> None:
    found = verify_study(twins)
    assert found.exit_code is ExitCode.DONE
    assert (found.different_count, found.unchecked, found.trials) == (0, (), 200)
    assert found.figures > 1000


def test_the_same_folder_gives_the_same_bytes_also_after_unpacking(
    twins: Path, tmp_path: Path
) -> None:
    with tarfile.open(twins) as archive:
        archive.extractall(tmp_path, filter="data")
    again = publish_study(tmp_path / "twins", tmp_path / "again.tar.gz")
    assert Path(again.file).read_bytes() == twins.read_bytes()


def test_a_changed_file_is_refused_or_holds_the_same(twins: Path, tmp_path: Path) -> None:
    """What an archive holds beside its files (times, padding, the packer's own header) is nobody's figure."""
    content, chance = twins.read_bytes(), random.Random(19)
    spoiled, refused = tmp_path / "spoiled.tar.gz", 0
    for number in range(40):
        spoiled.write_bytes(mutated(content, chance, number))
        into = tmp_path / f"into-{number}"
        try:
            unpack_study(spoiled, into)
        except StoreError:
            refused += 1
        else:
            assert {path.name: path.read_bytes() for path in into.rglob("*") if path.is_file()} == {
                Path(name).name: held for name, held in files_of(twins).items()
            }
    assert refused >= 38


def mutated(content: bytes, chance: random.Random, number: int) -> bytes:
    place = chance.randrange(len(content))
    match number % 4:
        case 0:
            return (
                content[:place]
                + bytes([content[place] ^ (1 << chance.randrange(8))])
                + content[place + 1 :]
            )
        case 1:
            return content[:place]
        case 2:
            return content[:place] + chance.randbytes(1 + chance.randrange(8)) + content[place:]
    return content[:place] + content[place + 1 :]


def faster(text: str) -> str:
    """The first measured trial is said to be twice as fast."""
    lines = text.splitlines(keepends=True)
    place = next(
        place
        for place, line in enumerate(lines)
        if '"kind":"measured"' in line and '"outcome":"ok"' in line
    )
    trial = json.loads(lines[place])
    trial["metrics"]["output_throughput"] *= 2
    lines[place] = json.dumps(trial) + "\n"
    return "".join(lines)


def better(text: str) -> str:
    found = json.loads(text)
    figure = next(point for point in found["points"] if point["metrics"])["metrics"][
        "output_throughput"
    ]
    figure["value"] *= 1.02
    return json.dumps(found)


def without_interval(text: str) -> str:
    found = json.loads(text)
    del next(point for point in found["points"] if point["metrics"])["metrics"][
        "output_throughput"
    ]["low"]
    return json.dumps(found)


def quicker_rows(files: Files) -> None:
    name = "requests/t00050.parquet"
    table = pq.read_table(pa.BufferReader(files[name]))
    place = table.schema.get_field_index("end_s")
    sooner = pa.array(
        [None if one is None else one * 0.9 for one in table.column(place).to_pylist()]
    )
    out = pa.BufferOutputStream()
    pq.write_table(table.set_column(place, "end_s", sooner), out)
    files[name] = out.getvalue().to_pybytes()


@pytest.mark.parametrize(
    "change",
    [
        edited("trials.jsonl", faster),
        edited(FIGURES, better),
        edited(FIGURES, without_interval),
        quicker_rows,
    ],
    ids=["trial", "report", "left out", "rows"],
)
def test_a_forger_is_caught_where_figures_do_not_follow(
    twins: Path, tmp_path: Path, change: Callable[[Files], None], capsys: pytest.CaptureFixture[str]
) -> None:
    said = bitbench(capsys, "verify", str(forged(twins, tmp_path / "forged.tar.gz", change)))
    assert said.exit_code == ExitCode.FAILED
    assert "do not follow" in said.out


def test_a_trial_that_was_taken_out_is_missing_by_its_number(twins: Path, tmp_path: Path) -> None:
    """Also from the figures, which are computed again: only its number tells."""
    folder = tmp_path / "twins"
    unpack_study(twins, folder)
    lines = (folder / "trials.jsonl").read_text().splitlines(keepends=True)
    (folder / "trials.jsonl").write_text("".join(lines[:40] + lines[41:]))
    found = verify_study(Path(publish_study(folder, tmp_path / "fewer.tar.gz").file))
    assert len(found.unchecked) == 1
    assert found.exit_code is ExitCode.INCONCLUSIVE


def test_without_rows_it_says_what_could_not_be_checked(twins: Path, tmp_path: Path) -> None:
    folder = tmp_path / "twins"
    unpack_study(twins, folder)
    shutil.rmtree(folder / "requests")
    found = verify_study(Path(publish_study(folder, tmp_path / "small.tar.gz").file))
    assert (found.exit_code, found.different_count) == (ExitCode.INCONCLUSIVE, 0)
    assert len(found.unchecked) == 1


CANARY = "k3y-0f-the-h0use"


def test_no_secret_and_no_place_of_the_machine_is_in_a_card(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    write_folder("demo", folder)
    lock = json.loads((folder / "lock.json").read_text())
    lock["plan"]["study"]["engines"][0]["args"] = {
        "api-key": CANARY,
        "url": f"http://me:{CANARY}@box.lan:8000/v1",
    }
    lock["plan"]["study"]["engines"][0]["env"] = {
        "HF_TOKEN": CANARY,
        "CACHE": f"/srv/{CANARY}/cache",
    }
    lock["plan"]["variants"][0]["path"] = f"/home/{CANARY}/models/x"
    lock["plan"]["study"]["description"] = (
        f"see ~{CANARY}/notes/today.txt and file:///mnt/{CANARY}/x"
    )
    (folder / "lock.json").write_text(json.dumps(lock))
    instances = [json.loads(line) for line in (folder / "instances.jsonl").read_text().splitlines()]
    instances[0]["log_lines"] = [f"loaded /data/{CANARY}/model.gguf in 3 s, GET /v1/models ok"]
    command = [
        f"--model=/data/{CANARY}/model.gguf",
        "--api-key",
        CANARY,
        f"--hf-token={CANARY}",
        "--port",
        "80",
    ]
    instances[0]["facts"]["command"] = ["serve", *command]
    (folder / "instances.jsonl").write_text("".join(json.dumps(one) + "\n" for one in instances))
    everything = b"".join(published(folder, tmp_path).values()).decode()
    assert CANARY not in everything
    assert "box.lan" not in everything
    assert str(tmp_path) not in everything
    assert "…/model.gguf in 3 s" in everything


# As somebody may have put it into a study, where no field says that it is secret.
SECRETS = {
    "an argument, and what the engine says of it": (
        {"api-key": CANARY},
        f"started with --api-key {CANARY} (hidden)",
    ),
    "an argument of another name": ({"ssl-key": CANARY}, f"ssl-key={CANARY}"),
    "a variable": ({"env": {"AWS_ACCESS_KEY_ID": CANARY}}, f"denied for {CANARY}"),
    "an argument in JSON": (
        {"hf-overrides": json.dumps({"auth_token": CANARY})},
        f"overrides: {CANARY}",
    ),
    "a token of a hub": ({}, "401 for hf_CANARYcanaryCANARYcanaryCANARY01"),
    "a key of a server": ({}, "Authorization: Bearer CANARY.canary/CANARY="),
    "a key in words": ({}, "using sk-CANARYcanaryCANARY0123 of the team"),
    "an address": ({}, "connected to 10.20.30.40:8000"),
    "a host without a scheme": ({"url": "canary-host.lan:8000"}, "ok"),
}


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_in_no_part_of_a_card(name: str, tmp_path: Path) -> None:
    """Neither where it was written, nor in a command, a log line, a cause or the error of a request."""
    arguments, said = SECRETS[name]
    folder = tmp_path / "demo"
    write_folder("demo", folder)
    lock = json.loads((folder / "lock.json").read_text())
    engine = lock["plan"]["study"]["engines"][0]
    engine["env"] = arguments.get("env", {})
    engine["args"] = {name: value for name, value in arguments.items() if name != "env"}
    (folder / "lock.json").write_text(json.dumps(lock))
    words = [
        word
        for name, value in engine["args"].items()
        if name != "url"
        for word in (f"--{name}", value)
    ]
    for file, change in {
        "instances.jsonl": {
            "log_lines": [said],
            "cause": said,
            "facts": {"command": ["serve", *words], "notes": [said]},
        },
        "trials.jsonl": {"log_lines": [said], "cause": said},
    }.items():
        records = [json.loads(line) | change for line in (folder / file).read_text().splitlines()]
        (folder / file).write_text("".join(json.dumps(one) + "\n" for one in records))
    everything = b"".join(published(folder, tmp_path).values()).decode(errors="replace")
    for secret in (CANARY, "CANARY", "canary-host", "10.20.30.40"):
        assert secret not in everything


def test_the_machines_of_a_fleet_have_no_names_in_a_card(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    write_folder("demo", folder)
    lock = json.loads((folder / "lock.json").read_text())
    lock["hosts"] = {
        "gpu7.corp.example": lock["host"],
        "me@gpu8": lock["host"],
        "local": lock["host"],
    }
    (folder / "lock.json").write_text(json.dumps(lock))
    instances = [json.loads(line) for line in (folder / "instances.jsonl").read_text().splitlines()]
    for number, instance in enumerate(instances):
        instance["host"] = ["gpu7.corp.example", "me@gpu8", "local"][number % 3]
        instance["cause"] = "gpu7.corp.example was lost; me@gpu8 goes on"
    (folder / "instances.jsonl").write_text("".join(json.dumps(one) + "\n" for one in instances))
    trials = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    sender = {"name": "me@loader9.corp.example", "requests": 1, "off_by_s": 0.001}
    health = {"send_lateness_p99_s": 0.0, "loop_lag_p99_s": 0.0, "cpu_share": 0.1}
    trials[0]["client"] = {**(trials[0].get("client") or health), "nodes": [sender]}
    (folder / "trials.jsonl").write_text("".join(json.dumps(one) + "\n" for one in trials))
    records = StudyFolder(unpacked(folder, tmp_path)).read()
    assert [*records.lock.hosts] == ["machine-001", "machine-002", "local"]
    assert (client := records.trials[0].client) is not None
    assert [node.name for node in client.nodes] == ["machine-003"]
    assert {one.host for one in records.instances} <= {*records.lock.hosts}
    assert records.instances[0].cause == "machine-001 was lost; machine-002 goes on"
    content = b"".join(published(folder, tmp_path).values())
    assert b"corp.example" not in content
    assert b"gpu8" not in content
    again = publish_study(unpacked(folder, tmp_path), tmp_path / "again.tar.gz")
    assert again.manifest.files == publish_study(folder, tmp_path / "demo.tar.gz").manifest.files


def test_an_environment_of_a_person_keeps_its_name_alone(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    write_folder("demo", folder)
    lock = json.loads((folder / "lock.json").read_text())
    lock["plan"]["study"]["engines"][0]["python"] = f"/home/{CANARY}/nightly/bin/python"
    lock["environments"] = {
        f"/home/{CANARY}/nightly/bin/python": {"vllm": "1.0"},
        "vllm": {"vllm": "0.9"},
    }
    (folder / "lock.json").write_text(json.dumps(lock))
    found = StudyFolder(unpacked(folder, tmp_path)).read().lock
    assert found.environments == {"/nightly": {"vllm": "1.0"}, "vllm": {"vllm": "0.9"}}
    assert found.plan.study.engines[0].environment(None) == "/nightly"


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (
            "smollm2-135m/bf16, Qwen/Qwen2.5-7B: 30 tok/s",
            "smollm2-135m/bf16, Qwen/Qwen2.5-7B: 30 tok/s",
        ),
        ("no route /metrics", "no route /metrics"),
        ("(/usr/lib/python3/x.py:12)", "(…/x.py:12)"),
        ("LIBRARY=/opt/a/lib:/home/me/lib", "LIBRARY=…/lib:…/lib"),
        ("~me/notes and $HOME/x/y", "…/notes and …/y"),
        ("https://me:word@box.lan:8000/v1?key=1#x", "https://…:8000/v1"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("http://[bad", "…"),
        (
            "cublas 12.8.4.1, server.cpp:1234, 127.0.0.1:80",
            "cublas 12.8.4.1, server.cpp:1234, 127.0.0.1:80",
        ),
        ("task-sk-eleton of a bearer token", "task-sk-eleton of a bearer ***"),
    ],
)
def test_a_text_keeps_its_sense_without_its_places(said: str, kept: str) -> None:
    assert hide_places(said) == kept


def test_rows_say_nothing_of_a_servers_paths(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(TWINS, tmp_path / "twins"))
    rows = folder / "requests" / "t00001.parquet"
    table = pq.read_table(rows)
    said = pa.array([f"no such file /opt/{CANARY}/x.py"] * table.num_rows)
    pq.write_table(table.set_column(table.schema.get_field_index("error"), "error", said), rows)
    found = StudyFolder(unpacked(folder, tmp_path))
    assert {*found.requests_of(found.trials()[0]).column("error").to_pylist()} == {
        "no such file …/x.py"
    }


@pytest.mark.parametrize(
    "change",
    [
        edited(
            "trials.jsonl", lambda text: text.replace("requests/t00001.parquet", "/etc/passwd", 1)
        ),
        lambda files: files.update({"requests/t00001.parquet": b"PAR1 is what it begins with"}),
        lambda files: files.update({"lock.json": b"[" * 100_000}),
        lambda files: files.update({FIGURES: b"[" * 100_000}),
        lambda files: files.pop("lock.json"),
        lambda files: files.pop("study.yaml"),
        lambda files: files.pop(FIGURES),
    ],
)
def test_what_a_stranger_packed_is_refused(
    twins: Path, tmp_path: Path, change: Callable[[Files], object]
) -> None:
    with pytest.raises(StoreError):
        verify_study(forged(twins, tmp_path / "forged.tar.gz", change))


@pytest.mark.parametrize(
    "name",
    [
        "study/../lock.json",
        "/etc/passwd",
        "lock.json",
        "study/report.html",
        "study/LOCK.JSON",
        "study/logs/i0001.log",
    ],
)
def test_a_file_of_another_name_is_never_written(tmp_path: Path, name: str) -> None:
    spoiled = write_entries(tmp_path / "odd.tar.gz", [(tarfile.TarInfo(name), b"x")])
    with pytest.raises(StoreError):
        unpack_study(spoiled, tmp_path / "into")
    assert not (tmp_path / "into").exists()


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE]
)
def test_only_plain_files_are_unpacked(tmp_path: Path, kind: bytes) -> None:
    entry = tarfile.TarInfo("study/lock.json")
    entry.type, entry.linkname = kind, "/etc/passwd"
    with pytest.raises(StoreError, match="holds"):
        unpack_study(write_entries(tmp_path / "odd.tar.gz", [(entry, b"")]), tmp_path / "into")
    assert not (tmp_path / "into").exists()


def test_one_name_has_one_file(tmp_path: Path) -> None:
    twice = [(tarfile.TarInfo("a/lock.json"), b"1"), (tarfile.TarInfo("b/lock.json"), b"2")]
    with pytest.raises(StoreError, match="holds"):
        unpack_study(write_entries(tmp_path / "odd.tar.gz", twice), tmp_path / "into")


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, kind: bytes) -> None:
    """A header that says so is enough."""
    path = bomb(tmp_path / "bomb.tar.gz", 2**32, kind=kind)
    began = process_time()
    with pytest.raises(StoreError, match="more than any"):
        unpack_study(path, tmp_path / "into")
    assert process_time() - began < 1


def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("hello")
    for name in ("pipe", "text", "none", "."):
        with pytest.raises(StoreError):
            verify_study(tmp_path / name)


def test_a_newer_form_asks_for_an_update(twins: Path, tmp_path: Path) -> None:
    files = files_of(twins)
    files[MANIFEST] = re.sub(rb'"format": \d+', b'"format": 99', files[MANIFEST])
    with pytest.raises(StoreError, match="newer"):
        verify_study(write_archive(tmp_path / "new.tar.gz", files))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (f"publish {TWINS} -o twins.tar.gz", ExitCode.DONE),
        ("publish nowhere", ExitCode.REFUSED),
        ("verify nothing.yaml", ExitCode.REFUSED),
    ],
)
def test_json_is_one_document(
    words: str,
    code: ExitCode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    said = bitbench(capsys, *words.split(), "--json")
    found = read_answer(said.out, words.split(maxsplit=1)[0])
    assert found["exit_code"] == said.exit_code == code
    assert (found["answer"] is None) is (found["error"] is not None)


def test_the_check_is_one_document_of_json(twins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = bitbench(capsys, "verify", str(twins), "--json")
    assert said.exit_code == ExitCode.DONE
    assert read_answer(said.out, "verify")["answer"]["different_count"] == 0

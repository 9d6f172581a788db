"""Evidence cards: what is published can be checked by a stranger, and what was changed is refused."""

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from time import process_time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bitbench.analysis.results.facts import Fact
from bitbench.features.cards.card import OWNER, read_card, unpack_card
from bitbench.features.cards.compare import query_cards
from bitbench.features.cards.publish import publish, without_places
from bitbench.features.cards.types import CardError, CardManifest, CardPoints, PartName
from bitbench.features.cards.verify import verify
from bitbench.records.folder import StudyFolder
from bitbench.records.profile import Phase
from bitbench.util.errors import BitbenchError, ExitCode, StoreError, UsageError
from tests.command_line import bitbench
from tests.features.cards.card_folders import (
    Parts,
    bomb,
    changed_card,
    edited,
    lying_card,
    make_key,
    needs_ssh,
    signers_of,
    with_roof,
    write_card,
)
from tests.gallery import GALLERY, SHOOTOUT, TWINS
from tests.json_answer import read_answer
from tests.support.study_folders import write_folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A card of `twins`, not signed; where ssh-keygen is installed also a signed one and its key."""
    made = tmp_path_factory.mktemp("cards")
    publish(TWINS, made / "plain.card", key=None, unsigned=True)
    if shutil.which("ssh-keygen"):
        publish(TWINS, made / "signed.card", key=make_key(made / "key"))
        signers_of(made / "signers", me=made / "key")
    return made


def test_every_figure_of_a_card_follows_from_its_records(place: Path) -> None:
    found = verify(place / "plain.card")
    assert found.exit_code is ExitCode.DONE
    assert [(one.different_count, one.unchecked) for one in found.checks] == [(0, 0)] * 3
    assert all(one.figures > 200 for one in found.checks)
    assert (found.trials, found.signed_by) == (200, None)
    assert any("not signed" in sentence for sentence in found.cannot_check)
    assert any("requests were sent at all" in sentence for sentence in found.cannot_check)


def test_the_same_folder_gives_the_same_bytes_also_after_unpacking(place: Path, tmp_path: Path) -> None:
    verify(place / "plain.card", unpack_into=tmp_path / "twins")
    again = publish(tmp_path / "twins", tmp_path / "again.card", key=None, unsigned=True)
    assert Path(again.card).read_bytes() == (place / "plain.card").read_bytes()
    with pytest.raises(StoreError, match="not empty"):
        verify(place / "plain.card", unpack_into=tmp_path / "twins")


@needs_ssh
def test_a_signature_says_who_and_other_keys_are_refused(place: Path, tmp_path: Path) -> None:
    found = verify(place / "signed.card", signers=place / "signers")
    assert found.signer == "me"
    assert found.signed_by is not None
    assert found.signed_by.startswith("SHA256:")
    others = signers_of(tmp_path / "others", you=make_key(tmp_path / "other"))
    with pytest.raises(CardError, match="no key in"):
        verify(place / "signed.card", signers=others)
    with pytest.raises(CardError, match="is not signed"):
        verify(place / "plain.card", signers=others)


@needs_ssh
def test_a_changed_card_is_refused_in_100_of_100_mutations(place: Path, tmp_path: Path) -> None:
    """60 of bytes anywhere; 40 by a forger who changes a number in the records and makes every hash right again, but
    does not have the key."""
    content = (place / "signed.card").read_bytes()
    chance = random.Random(19)
    refused = 0
    for number in range(60):
        spoiled = mutated(content, chance, number)
        assert spoiled != content
        refused += is_refused(tmp_path / "spoiled.card", spoiled)
    signature = re.search(rb"-----BEGIN.*?END SSH SIGNATURE-----\n", content, re.DOTALL)
    assert signature is not None
    for _ in range(40):
        forged = changed_card(place / "signed.card", tmp_path / "forged.card", edited(*a_number(chance)))
        kept = forged.read_bytes().replace(b"\nunsigned\n", b"\n" + signature[0], 1)
        refused += is_refused(tmp_path / "spoiled.card", kept)
    assert refused == 100


def mutated(content: bytes, chance: random.Random, number: int) -> bytes:
    """Half of the places are in the head, which is a hundredth of the file."""
    place = chance.randrange(2000 if number % 2 else len(content))
    match number % 5:
        case 0 | 1:
            return content[:place] + bytes([content[place] ^ (1 << chance.randrange(8))]) + content[place + 1 :]
        case 2:
            return content[:place]
        case 3:
            return content[:place] + chance.randbytes(1 + chance.randrange(8)) + content[place:]
    return content[:place] + content[place + 1 :]


def a_number(chance: random.Random) -> tuple[PartName, Callable[[str], str]]:
    part = chance.choice([PartName.TRIALS, PartName.FIGURES, PartName.POINTS, PartName.INSTANCES, PartName.LOCK])

    def edit(text: str) -> str:
        numbers = list(re.finditer(r"(?<=[:,])\d+\.\d+", text))
        found = chance.choice(numbers)
        return text[: found.start()] + str(float(found[0]) * 1.25 + 0.001) + text[found.end() :]

    return part, edit


def is_refused(path: Path, content: bytes) -> bool:
    path.write_bytes(content)
    try:
        verify(path)
    except CardError:
        return True
    return False


def faster(text: str) -> str:
    """The first measured trial is said to be twice as fast."""
    lines = text.splitlines(keepends=True)
    place = next(place for place, line in enumerate(lines) if '"kind":"measured"' in line and '"outcome":"ok"' in line)
    trial = json.loads(lines[place])
    trial["metrics"]["output_throughput"] *= 2
    lines[place] = json.dumps(trial) + "\n"
    return "".join(lines)


def better(text: str) -> str:
    found = json.loads(text)
    figure = next(point for point in found["points"] if point["metrics"])["metrics"]["output_throughput"]
    figure["value"] *= 1.02
    return json.dumps(found)


def quicker_rows(parts: Parts) -> None:
    table = pq.read_table(pa.BufferReader(parts[PartName.REQUESTS]))
    place = table.schema.get_field_index("end_s")
    sooner = pa.array([None if one is None else one * 0.9 for one in table.column(place).to_pylist()])
    out = pa.BufferOutputStream()
    pq.write_table(table.set_column(place, "end_s", sooner), out)
    parts[PartName.REQUESTS] = out.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (edited(PartName.TRIALS, faster), 0),
        (edited(PartName.FIGURES, better), 1),
        (quicker_rows, 0),
        (edited(PartName.POINTS, lambda text: re.sub(r'"value":(\d+)', r'"value":1\1', text, count=1)), 2),
    ],
    ids=["trial", "report", "rows", "points"],
)
def test_a_forger_with_a_key_is_caught_where_figures_do_not_follow(
    place: Path, tmp_path: Path, change: Callable[[Parts], None], check: int, capsys: pytest.CaptureFixture[str]
) -> None:
    forged = changed_card(place / "plain.card", tmp_path / "forged.card", change)
    assert verify(forged).checks[check].different_count > 0
    said = bitbench(capsys, "verify", str(forged), "--unpack", str(tmp_path / "unpacked"))
    assert said.exit_code == ExitCode.FAILED
    assert "do not follow" in said.out
    assert not (tmp_path / "unpacked").exists()


@pytest.mark.parametrize("name", ["low", "facts", "engine-version", "phases"])
def test_what_a_forger_leaves_out_of_the_points_is_a_difference(name: str, place: Path, tmp_path: Path) -> None:
    """A query puts a default in its place."""

    def leave_out(content: object) -> object:
        if isinstance(content, dict):
            return {key: leave_out(value) for key, value in content.items() if key != name}
        return [leave_out(one) for one in content] if isinstance(content, list) else content

    forged = changed_card(
        place / "plain.card",
        tmp_path / "forged.card",
        edited(PartName.POINTS, lambda text: json.dumps(leave_out(json.loads(text)))),
    )
    assert verify(forged).exit_code is ExitCode.FAILED


def test_trials_that_were_set_aside_are_counted_where_nobody_can_check_why(place: Path, tmp_path: Path) -> None:
    """Figures follow also where somebody called the slow trials rejected."""
    folder = tmp_path / "twins"
    verify(place / "plain.card", unpack_into=folder)
    lines = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    for line in lines[:7]:
        line["outcome"] = "client_bound"
    (folder / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    card = Path(publish(folder, tmp_path / "better.card", key=None, unsigned=True).card)
    aside = [sentence for sentence in verify(card).cannot_check if "rightly left out" in sentence]
    before = [sentence for sentence in verify(place / "plain.card").cannot_check if "rightly left out" in sentence]
    assert aside
    assert aside != before


def test_a_trial_that_was_taken_out_is_missing_by_its_number(place: Path, tmp_path: Path) -> None:
    """Also from the figures, which are computed again: only its number tells."""
    folder = tmp_path / "twins"
    verify(place / "plain.card", unpack_into=folder)
    lines = (folder / "trials.jsonl").read_text().splitlines(keepends=True)
    (folder / "trials.jsonl").write_text("".join(lines[:40] + lines[41:]))
    card = Path(publish(folder, tmp_path / "fewer.card", key=None, unsigned=True).card)
    found = verify(card)
    assert found.gaps == ("trial number 41 is missing",)
    assert found.exit_code is ExitCode.INCONCLUSIVE


def test_a_card_without_rows_says_what_could_not_be_checked(tmp_path: Path) -> None:
    card = Path(publish(TWINS, tmp_path / "small.card", key=None, unsigned=True, rows=False).card)
    found = verify(card)
    assert found.exit_code is ExitCode.INCONCLUSIVE
    assert found.requests is None
    assert found.checks[0].unchecked > 100
    assert "no request rows" in (found.checks[0].why_unchecked or "")
    assert found.model_copy(update={"allow_inconclusive": True}).exit_code is ExitCode.DONE


CANARY = "k3y-0f-the-h0use"


def test_no_secret_and_no_place_of_the_machine_is_in_a_card(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    write_folder("demo", folder)
    lock = json.loads((folder / "lock.json").read_text())
    lock["plan"]["study"]["engines"][0]["args"] = {"api-key": CANARY, "url": f"http://me:{CANARY}@box.lan:8000/v1"}
    lock["plan"]["study"]["engines"][0]["env"] = {"HF_TOKEN": CANARY, "CACHE": f"/srv/{CANARY}/cache"}
    lock["plan"]["variants"][0]["path"] = f"/home/{CANARY}/models/x"
    lock["plan"]["study"]["description"] = f"see ~{CANARY}/notes/today.txt and file:///mnt/{CANARY}/x"
    (folder / "lock.json").write_text(json.dumps(lock))
    instances = [json.loads(line) for line in (folder / "instances.jsonl").read_text().splitlines()]
    instances[0]["log_lines"] = [f"loaded /data/{CANARY}/model.gguf in 3 s, GET /v1/models ok"]
    command = [f"--model=/data/{CANARY}/model.gguf", "--api-key", CANARY, f"--hf-token={CANARY}", "--port", "80"]
    instances[0]["facts"]["command"] = ["serve", *command]
    (folder / "instances.jsonl").write_text("".join(json.dumps(one) + "\n" for one in instances))
    card = read_card(Path(publish(folder, tmp_path / "demo.card", key=None, unsigned=True).card))
    everything = b"".join(card.parts.values()).decode()
    assert CANARY not in everything
    assert "box.lan" not in everything
    assert str(tmp_path) not in everything
    assert "…/model.gguf in 3 s" in everything


# As somebody may have put it into a study, where no field says that it is secret.
SECRETS = {
    "an argument, and what the engine says of it": ({"api-key": CANARY}, f"started with --api-key {CANARY} (hidden)"),
    "an argument of another name": ({"ssl-key": CANARY}, f"ssl-key={CANARY}"),
    "a variable": ({"env": {"AWS_ACCESS_KEY_ID": CANARY}}, f"denied for {CANARY}"),
    "an argument in JSON": ({"hf-overrides": json.dumps({"auth_token": CANARY})}, f"overrides: {CANARY}"),
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
    words = [word for name, value in engine["args"].items() if name != "url" for word in (f"--{name}", value)]
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
    card = read_card(Path(publish(folder, tmp_path / "demo.card", key=None, unsigned=True).card))
    everything = b"".join(card.parts.values()).decode(errors="replace")
    for secret in (CANARY, "CANARY", "canary-host", "10.20.30.40"):
        assert secret not in everything


def test_the_machines_of_a_fleet_have_no_names_in_a_card(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    write_folder("demo", folder)
    lock = json.loads((folder / "lock.json").read_text())
    lock["hosts"] = {"gpu7.corp.example": lock["host"], "me@gpu8": lock["host"], "local": lock["host"]}
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
    card = Path(publish(folder, tmp_path / "demo.card", key=None, unsigned=True).card)
    records = unpack_card(read_card(card).parts, "demo")
    assert [*records.lock.hosts] == ["machine-001", "machine-002", "local"]
    assert (client := records.trials[0].client) is not None
    assert [node.name for node in client.nodes] == ["machine-003"]
    assert {one.host for one in records.instances} <= {*records.lock.hosts}
    assert records.instances[0].cause == "machine-001 was lost; machine-002 goes on"
    content = b"".join(read_card(card).parts.values())
    assert b"corp.example" not in content
    assert b"gpu8" not in content
    verify(card, unpack_into=tmp_path / "again")
    again = Path(publish(tmp_path / "again", tmp_path / "again.card", key=None, unsigned=True).card)
    assert again.read_bytes() == card.read_bytes()


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("smollm2-135m/bf16, Qwen/Qwen2.5-7B: 30 tok/s", "smollm2-135m/bf16, Qwen/Qwen2.5-7B: 30 tok/s"),
        ("no route /metrics", "no route /metrics"),
        ("(/usr/lib/python3/x.py:12)", "(…/x.py:12)"),
        ("LIBRARY=/opt/a/lib:/home/me/lib", "LIBRARY=…/lib:…/lib"),
        ("~me/notes and $HOME/x/y", "…/notes and …/y"),
        ("https://me:word@box.lan:8000/v1?key=1#x", "https://…:8000/v1"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("http://[bad", "…"),
        ("cublas 12.8.4.1, server.cpp:1234, 127.0.0.1:80", "cublas 12.8.4.1, server.cpp:1234, 127.0.0.1:80"),
        ("task-sk-eleton of a bearer token", "task-sk-eleton of a bearer ***"),
    ],
)
def test_a_text_keeps_its_sense_without_its_places(said: str, kept: str) -> None:
    assert without_places(said) == kept


def test_rows_say_nothing_of_a_servers_paths(tmp_path: Path) -> None:
    verify_into = tmp_path / "twins"
    shutil.copytree(TWINS, verify_into)
    rows = verify_into / "requests" / "t00001.parquet"
    table = pq.read_table(rows)
    said = pa.array([f"no such file /opt/{CANARY}/x.py"] * table.num_rows)
    pq.write_table(table.set_column(table.schema.get_field_index("error"), "error", said), rows)
    card = read_card(Path(publish(verify_into, tmp_path / "x.card", key=None, unsigned=True).card))
    trial = unpack_card(card.parts, "x").trials[0]
    assert unpack_card(card.parts, "x").requests_of(trial, None).column("error").to_pylist() == ["no such file …/x.py"]


def id_of(record_id: str) -> Callable[[Parts], None]:
    return edited(PartName.TRIALS, lambda text: text.replace('"id":"t00001"', f'"id":"{record_id}"', 1))


def many_rows(parts: Parts) -> None:
    """Six kilobytes that stand for thirty million rows of one trial."""
    out = pa.BufferOutputStream()
    owners = pa.DictionaryArray.from_arrays(pa.array([0] * 30_000_000, pa.int8()), pa.array(["t00001"]))
    pq.write_table(pa.table({OWNER: owners}), out, row_group_size=30_000_000)
    parts[PartName.REQUESTS] = out.getvalue().to_pybytes()


def long_texts(parts: Parts) -> None:
    """Some kilobytes that stand for a terabyte of text."""
    out = pa.BufferOutputStream()
    owners = pa.DictionaryArray.from_arrays(pa.array([0] * 10_000_000, pa.int8()), pa.array(["t" * 100_000]))
    pq.write_table(pa.table({OWNER: owners}), out, row_group_size=10_000_000, store_schema=False)
    parts[PartName.REQUESTS] = out.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (id_of("../../x"), "which bitbench does not give"),
        (id_of("lock"), "which bitbench does not give"),
        (edited(PartName.TRIALS, lambda text: text.replace("requests/t00001.parquet", "/etc/passwd", 1)), "names rows"),
        (edited(PartName.TRIALS, lambda text: text.replace("requests/t00001", "requests/t00002", 1)), "names rows"),
        (many_rows, "more than"),
        (long_texts, "the texts of a row group have more than"),
        (lambda parts: parts.update({PartName.REQUESTS: b"PAR1 is what it begins with"}), "cannot be read"),
        (lambda parts: parts.update({PartName.LOCK: b"[" * 100_000}), "nested too deeply|not valid JSON"),
        (lambda parts: parts.update({PartName.FIGURES: b"[" * 100_000}), "is no JSON"),
        (lambda parts: parts.pop(PartName.LOCK) and None, "has no lock.json"),
        (lambda parts: parts.pop(PartName.FIGURES) and None, "has no figures.json"),
    ],
)
def test_what_a_stranger_put_into_a_card_is_refused(
    place: Path, tmp_path: Path, change: Callable[[Parts], None], words: str
) -> None:
    forged = changed_card(place / "plain.card", tmp_path / "forged.card", change)
    with pytest.raises(StoreError, match=words):
        verify(forged, unpack_into=tmp_path / "unpacked")
    assert not (tmp_path / "unpacked").exists()


def test_a_part_is_never_unpacked_beyond_what_it_states(tmp_path: Path) -> None:
    small = bomb(2**27)
    for size, words in ((1000, "cannot be unpacked"), (2**27, "the limit")):
        began = process_time()
        with pytest.raises(CardError, match=words):
            read_card(lying_card(tmp_path / "bomb.card", "lock.json", small, size))
        assert process_time() - began < 1


@pytest.mark.parametrize("name", ["../lock.json", "/etc/passwd", "report.html", "LOCK.JSON", ""])
def test_a_part_of_another_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CardError, match="parts"):
        read_card(lying_card(tmp_path / "odd.card", name, b"x", 1))


def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.card")
    for path, words in ((tmp_path / "pipe.card", "a pipe"), (tmp_path, "a folder"), (tmp_path / "none", "cannot be")):
        with pytest.raises(CardError, match=words):
            read_card(path)


def test_publishing_needs_a_key_or_a_word_that_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder("demo", tmp_path / "demo")
    assert bitbench(capsys, "publish", "demo").exit_code == ExitCode.USAGE
    assert bitbench(capsys, "publish", "demo", "--key", "none").exit_code == ExitCode.USAGE
    (tmp_path / "not-a-key").write_text("hello")
    with pytest.raises(CardError, match="did not sign"):
        publish(tmp_path / "demo", key=tmp_path / "not-a-key")
    said = bitbench(capsys, "publish", "demo", "--unsigned")
    assert said.exit_code == ExitCode.DONE
    assert "Wrote demo.card" in said.out
    with pytest.raises(UsageError):
        publish(tmp_path / "demo", key=tmp_path / "not-a-key", unsigned=True)


def many(card: Path, into: Path, count: int) -> None:
    """Cards of so many machines; every tenth has another version of the engines, the last one was damaged."""
    parts = {PartName.POINTS: b"", PartName.REQUESTS: read_card(card).parts[PartName.REQUESTS]}
    points = json.loads(read_card(card).parts[PartName.POINTS])
    manifest = CardManifest(bitbench="0.1.0", study="twins", has_rows=True, parts=())
    for number in range(count):
        points["host"] = {"cpu_model": f"CPU {number}", "threads": 2}
        for point in points["points"]:
            point["facts"]["engine-version"] = "2" if number % 10 == 0 else "1"
        write_card(into / f"{number:04d}.card", manifest, parts | {PartName.POINTS: json.dumps(points).encode()})
    last = into / f"{count - 1:04d}.card"
    last.write_bytes(last.read_bytes().replace(b'"study"', b'"Study"', 1))


def test_a_thousand_cards_are_queried_in_seconds(place: Path, tmp_path: Path) -> None:
    many(place / "plain.card", tmp_path, 1000)
    began = process_time()
    found = query_cards(tmp_path)
    took = process_time() - began
    assert took < 10, f"{took:.1f} s"
    assert found.cards == 999
    assert [one.card for one in found.left_out] == ["0999.card"]
    sizes = sorted({len({entry.card for entry in group.entries}) for group in found.groups})
    assert sizes == [100, 899]  # each version of the engines by itself


def test_points_that_differ_in_a_fact_are_refused_unless_it_is_allowed(place: Path, tmp_path: Path) -> None:
    shutil.copy(place / "plain.card", tmp_path / "a.card")
    newer = edited(PartName.POINTS, lambda text: re.sub(r'"engine-version":"[^"]*"', '"engine-version":"9"', text))
    changed_card(place / "plain.card", tmp_path / "b.card", newer)
    found = query_cards(tmp_path)
    assert found.groups == ()
    assert found.exit_code is ExitCode.NOTHING_MEASURED
    assert {fact for one in found.not_compared for fact in one.differs} == {Fact.ENGINE_VERSION}
    allowed = query_cards(tmp_path, allow=[Fact.ENGINE_VERSION])
    assert allowed.exit_code is ExitCode.DONE
    assert allowed.not_compared == ()
    assert all({entry.card for entry in group.entries} == {"a.card", "b.card"} for group in allowed.groups)
    assert query_cards(tmp_path, allow=[Fact.ENGINE_VERSION], model="another").groups == ()


def test_the_same_card_twice_is_no_second_machine(place: Path, tmp_path: Path) -> None:
    for name in ("a.card", "b.card"):
        shutil.copy(place / "plain.card", tmp_path / name)
    (tmp_path / "c.card").symlink_to(place / "plain.card")
    found = query_cards(tmp_path)
    assert (found.cards, found.groups) == (1, ())
    assert [one.why for one in found.left_out] == ["it is the same card as a.card"]


def test_machines_are_compared_by_their_share_of_the_roof(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same trials under a roof that is twice as high use half of it."""
    for name, speed in (("low", 2e10), ("high", 4e10)):
        folder = with_roof(SHOOTOUT, tmp_path / name, bytes_per_s=speed)
        publish(folder, tmp_path / f"{name}.card", key=None, unsigned=True, rows=False)
    found = query_cards(tmp_path)
    group = next(one for one in found.groups if one.recipe == "gguf-q4_0" and '"concurrency": 1,' in one.shape)
    low, high = group.entries
    assert (low.card, high.card) == ("low.card", "high.card")
    shares = [next(one for one in entry.phases if one.phase is Phase.DECODE) for entry in (low, high)]
    assert shares[0].share.value == pytest.approx(2 * shares[1].share.value)
    assert shares[0].share.interval is not None
    assert shares[0].share.interval.low < shares[0].share.value < shares[0].share.interval.high
    monkeypatch.setenv("COLUMNS", "160")
    said = bitbench(capsys, "cards", str(tmp_path))
    assert said.exit_code == ExitCode.DONE
    assert "low.card uses significantly more of its roof than high.card" in said.out


def test_a_folder_without_cards_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bitbench(capsys, "cards", str(tmp_path)).exit_code == ExitCode.REFUSED


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (f"publish {TWINS} --unsigned", ExitCode.DONE),
        (f"verify {GALLERY / 'cpu-shootout.card'}", ExitCode.DONE),
        (f"cards {GALLERY / 'cpu-shootout.card'}", ExitCode.NOTHING_MEASURED),
        (f"publish {TWINS}", ExitCode.USAGE),
        ("verify nothing.yaml", ExitCode.REFUSED),
        ("cards none", ExitCode.REFUSED),
    ],
)
def test_json_is_one_document(
    words: str, code: ExitCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    said = bitbench(capsys, *words.split(), "--json")
    found = read_answer(said.out, words.split(maxsplit=1)[0])
    assert found["exit_code"] == said.exit_code == code
    assert (found["answer"] is None) is (found["error"] is not None)


@needs_ssh
def test_a_query_takes_only_cards_of_known_keys(place: Path, tmp_path: Path) -> None:
    shutil.copy(place / "signed.card", tmp_path / "signed.card")
    newer = edited(PartName.POINTS, lambda text: text.replace("Xeon", "Neox", 1))
    changed_card(place / "plain.card", tmp_path / "own-key.card", newer, key=make_key(tmp_path / "other"))
    found = query_cards(tmp_path, signers=place / "signers")
    assert found.cards == 1
    assert [one.card for one in found.left_out] == ["own-key.card"]


@needs_ssh
def test_the_card_of_the_gallery_is_that_of_its_study() -> None:
    """`scripts/gallery_card` makes it."""
    card = GALLERY / "cpu-shootout.card"
    found = verify(card, signers=GALLERY / "signers")
    assert (found.signer, found.exit_code) == ("gallery", ExitCode.DONE)
    stated, folder = unpack_card(read_card(card).parts, "card"), StudyFolder(SHOOTOUT).read()
    assert [one.outcome for one in stated.trials] == [one.outcome for one in folder.trials]
    both = zip(stated.trials, folder.trials, strict=True)  # the folder has the metrics of rejected trials since
    assert all(own.is_rejected or own.metrics == known.metrics for known, own in both)
    assert stated.lock.host == folder.lock.host


def test_points_of_a_card_are_what_the_schema_of_a_query_reads(place: Path) -> None:
    points = CardPoints.model_validate_json(read_card(place / "plain.card").parts[PartName.POINTS])
    assert points.study == "twins"
    assert all(set(point.facts) >= {Fact.TOOL, Fact.ARTIFACT} for point in points.points)
    with pytest.raises(BitbenchError):
        query_cards(place / "missing")

"""A study folder that was damaged: every command that reads says in a sentence which file it is, and what to do."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bitbench.machine.workplace import Workplace
from bitbench.records.folder import StudyFolder
from bitbench.running.offers import LogObserver
from bitbench.running.runner import measure_study
from bitbench.study.base import Json
from tests.command_line import Answer, bitbench
from tests.length import IS_LONG
from tests.unit.test_model_cost import ROOF

STUDY = """
name: damaged
engines:
  - {engine: null, name: a, args: {ttft: 100ms, tpot: 250ms}}
  - {engine: null, name: b, args: {ttft: 100ms, tpot: 250ms}}
workloads: [{name: one, concurrency: 1, input_tokens: 8, output_tokens: 2}]
measure: {starts: 2, trials: 2}
"""
DEFECT = 70  # exit code of what bitbench did not expect
COUNTED = "SELECT count(*) FROM trials"
EVERYTHING = (
    "SELECT count(*), count(q.tokens), sum(r.end_s - r.planned_s) FROM trials "
    "LEFT JOIN instances USING (folder, instance) "
    "LEFT JOIN requests r USING (folder, trial) LEFT JOIN quality q USING (folder)"
)
READERS: dict[str, list[str]] = {
    "report": ["report", "FOLDER"],
    "compare": ["compare", "WHOLE", "FOLDER"],
    "recommend": ["recommend", "FOLDER"],
    "explain": ["explain", "FOLDER", "b", "--against", "a"],
    "history": ["history", "FOLDER", "--point", "a"],
    "query": ["query", "FOLDER", EVERYTHING],
    "run": ["run", "STUDY", "--into", "FOLDER"],
}


@dataclass(frozen=True)
class Corruption:
    """`by`: the commands that must refuse; None: those that read records strictly. The others must not break."""

    file: str
    change: Callable[[Path], object]
    said: str
    by: tuple[str, ...] = ("report", "compare", "recommend", "explain", "history", "run")
    is_skipped_by_query: bool = False

    @property
    def readers(self) -> tuple[str, ...]:
        """The commands that say something about it."""
        return (*self.by, "query") if self.is_skipped_by_query else self.by


def put(content: str | bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content.encode() if isinstance(content, str) else content)


def second_line(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    def corrupt(path: Path) -> None:
        lines = path.read_bytes().splitlines(keepends=True)
        lines[1] = change(lines[1])
        path.write_bytes(b"".join(lines))

    return corrupt


def line(content: str | bytes) -> Callable[[Path], object]:
    raw = content.encode() if isinstance(content, str) else content
    return second_line(lambda _: raw + b"\n")


def fields(**given: Json) -> Callable[[Path], object]:
    """The second line with other values; `...` removes a field."""

    def change(raw: bytes) -> bytes:
        record = {**json.loads(raw), **given}
        return (
            json.dumps({name: value for name, value in record.items() if value is not ...}).encode()
            + b"\n"
        )

    return second_line(change)


def text(old: str, new: str) -> Callable[[Path], object]:
    def change(raw: bytes) -> bytes:
        assert old.encode() in raw
        return raw.replace(old.encode(), new.encode(), 1)

    return second_line(change)


def document(**given: Json) -> Callable[[Path], object]:
    def corrupt(path: Path) -> None:
        record = {**json.loads(path.read_text()), **given}
        path.write_text(
            json.dumps({name: value for name, value in record.items() if value is not ...})
        )

    return corrupt


def strange_point(path: Path) -> None:
    lock = json.loads(path.read_text())
    lock["plan"]["points"][0]["config"]["engine"] = "ghost"
    path.write_text(json.dumps(lock))


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def columns(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], object]:
    return lambda path: pq.write_table(change(pq.read_table(path)), path)


def words_as_times(table: pa.Table) -> pa.Table:
    number = table.schema.get_field_index("planned_s")
    return table.set_column(number, "planned_s", pa.array(["soon"] * table.num_rows))


TRIAL, LOCK, ROWS = "trials.jsonl", "lock.json", "requests/ROWS"
DAMAGED, LINE = "is damaged and cannot be read", "trials.jsonl:2 in "
DEEP = "[" * 100_000 + "]" * 100_000
ROW_READERS = ("report", "recommend", "query", "run")
CORRUPTIONS = {
    "cut in the middle": Corruption(TRIAL, line('{"format": 1, "id": "t0'), LINE, is_skipped_by_query=True),
    "no JSON": Corruption(TRIAL, line("garbage"), LINE, is_skipped_by_query=True),
    "a list": Corruption(TRIAL, line("[]"), "it is not a JSON object", is_skipped_by_query=True),
    "a number": Corruption(TRIAL, line("5"), "it is not a JSON object", is_skipped_by_query=True),
    "nothing but braces": Corruption(TRIAL, line("{}"), "`id`: Field required", is_skipped_by_query=True),
    "an empty line": Corruption(TRIAL, line(""), LINE),
    "zeros": Corruption(TRIAL, line(b"\0" * 200), LINE),
    "no UTF-8": Corruption(TRIAL, line(b'{"id": "\xff\xfe"}'), LINE),
    "half a character": Corruption(TRIAL, fields(cause="\ud800"), LINE),
    "too deep": Corruption(TRIAL, line(DEEP), LINE),
    "a word for a number": Corruption(TRIAL, fields(block="three"), "`block`: Input should be a valid integer"),
    "a number for a point": Corruption(TRIAL, fields(point=5), "`point`: "),
    "not a number": Corruption(TRIAL, fields(duration_s=float("nan")), LINE),
    "infinite": Corruption(TRIAL, fields(duration_s=float("inf")), LINE),
    "too large for a float": Corruption(TRIAL, text('"block":0', '"block":1e400'), LINE),
    "thousands of digits": Corruption(TRIAL, text('"block":0', f'"block":{"9" * 5000}'), LINE),
    "a newer version": Corruption(TRIAL, fields(format=99), "update bitbench"),
    "a word for a version": Corruption(TRIAL, fields(format="one"), "`format` is not a whole number"),
    "without its outcome": Corruption(TRIAL, fields(outcome=...), "`outcome`: Field required"),
    "an unknown outcome": Corruption(TRIAL, fields(outcome="fine"), "`outcome`: Input should be"),
    "a word for a time": Corruption(TRIAL, fields(started_at="yesterday"), "Invalid isoformat string"),
    "another trial of the same id": Corruption(
        TRIAL, lambda path: path.write_text(path.read_text().replace('"t00002"', '"t00001"', 1)), "occurs twice"
    ),
    "a workload of another study": Corruption(
        TRIAL, text('"workload":"one"', '"workload":"two"'), "· two, which the study", ("report", "compare", "history"),
    ),
    "a folder for the trials": Corruption(TRIAL, folder_instead, "trials.jsonl is a folder instead of a plain file"),
    "half an instance": Corruption("instances.jsonl", line('{"id": "i'), "instances.jsonl:2 in "),
    "facts that are none": Corruption("instances.jsonl", fields(facts=[]), "instances.jsonl:2 in "),
    "half a measurement": Corruption("quality.jsonl", put('{"id": "q0001", "out\n'), "quality.jsonl:1 in "),
    "an empty lock": Corruption(LOCK, put(""), DAMAGED),
    "half a lock": Corruption(LOCK, half, DAMAGED),
    "a deep lock": Corruption(LOCK, put(DEEP), DAMAGED),
    "a lock that is no UTF-8": Corruption(LOCK, put(b"\xff" * 20), DAMAGED),
    "a newer lock": Corruption(LOCK, document(format=99), "update bitbench"),
    "a lock without a plan": Corruption(LOCK, document(plan=...), "`plan`: Field required"),
    "a lock with a stranger": Corruption(LOCK, strange_point, "is about ghost · one", ("report", "compare", "history")),
    "a folder for the lock": Corruption(LOCK, folder_instead, "lock.json is a folder instead of a plain file"),
    "an empty study": Corruption("study.yaml", put(""), "study.yaml:1", ("run",)),
    "a study that is no UTF-8": Corruption("study.yaml", put(b"\xff\xfe"), "it is not UTF-8 text", ("run",)),
    "no study": Corruption("study.yaml", Path.unlink, "study.yaml", ("report", "compare", "recommend", "run")),
    "empty rows": Corruption(ROWS, put(""), DAMAGED, ROW_READERS),
    "no Parquet": Corruption(ROWS, put(b"PAR1" + b"x" * 100 + b"PAR1"), DAMAGED, ROW_READERS),
    "half the rows": Corruption(ROWS, half, DAMAGED, ROW_READERS),
    "words for times": Corruption(ROWS, columns(words_as_times), DAMAGED, ("report", "recommend", "run")),
    "rows without a column": Corruption(
        ROWS, columns(lambda table: table.drop_columns(["status"])), DAMAGED, ("report", "recommend", "run")
    ),
    "half a roof": Corruption("roof.json", put('{"format": 1'), "remove it, and it is measured again"),
    "half a profile": Corruption("profiles/p0001.json", put('{"format": 1'), DAMAGED),
}  # fmt: skip
HARMLESS: dict[str, Callable[[StudyFolder], None]] = {
    "a torn last line": lambda folder: _append(folder, b'{"format": 1, "id": "t0'),
    "missing rows": lambda folder: next(folder.requests.iterdir()).unlink(),
    "no quality": lambda folder: (folder.path / "quality.jsonl").unlink(missing_ok=True),
}


def in_turn(readers: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Each with two of its readers, so that all have their share; in the long form with every command."""
    if IS_LONG:
        return list(product(readers, READERS))
    turns = [(name, by, number % len(by)) for number, (name, by) in enumerate(readers.items())]
    return [
        (name, command)
        for name, by, turn in turns
        for command in dict.fromkeys((by[turn], by[turn - len(by) // 2]))
    ]


def _append(folder: StudyFolder, raw: bytes) -> None:
    with (folder.path / TRIAL).open("ab") as file:
        file.write(raw)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that was really run, so that `run` finds nothing left to do."""
    place = tmp_path_factory.mktemp("whole")
    (place / "study.yaml").write_text(STUDY)
    measure_study(place / "study.yaml", place / "out", LogObserver(), Workplace())
    (place / "out" / "roof.json").write_text(
        ROOF.model_dump_json()
    )  # else `explain` would measure it
    return place


@pytest.fixture
def damaged(whole: Path, tmp_path: Path) -> StudyFolder:
    shutil.copytree(whole / "out", tmp_path / "out")
    return StudyFolder(tmp_path / "out")


def ask(
    command: str, folder: StudyFolder, whole: Path, capsys: pytest.CaptureFixture[str]
) -> Answer:
    places = {
        "FOLDER": str(folder.path),
        "WHOLE": str(whole / "out"),
        "STUDY": str(whole / "study.yaml"),
    }
    return bitbench(capsys, *(places.get(word, word) for word in READERS[command]))


@pytest.mark.parametrize(
    ("name", "command"), in_turn({name: one.readers for name, one in CORRUPTIONS.items()})
)
def test_what_is_damaged_is_named(
    name: str, command: str, damaged: StudyFolder, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corruption = CORRUPTIONS[name]
    counted = next(trial for trial in damaged.trials() if trial.counts)
    path = damaged.path / corruption.file.replace("ROWS", f"{counted.id}.parquet")
    path.parent.mkdir(exist_ok=True)
    corruption.change(path)
    answer = ask(command, damaged, whole, capsys)
    assert answer.exit_code != DEFECT, answer.err
    assert "Traceback" not in answer.err
    if command in corruption.by:
        assert answer.exit_code != 0
        assert corruption.said in answer.err or command == "query"  # in pyarrow's words
        assert path.name in answer.err
        assert answer.err.strip().count("\n") == 0
    if command == "query" and corruption.is_skipped_by_query:
        assert "1 study folder left out: ." in answer.err
        assert corruption.said in answer.err


@pytest.mark.parametrize(("name", "command"), in_turn(dict.fromkeys(HARMLESS, tuple(READERS))))
def test_what_is_no_damage_changes_nothing(
    name: str, command: str, damaged: StudyFolder, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = damaged.trials()
    HARMLESS[name](damaged)
    assert damaged.trials() == before
    expected, answer = (
        ask(command, StudyFolder(whole / "out"), whole, capsys),
        ask(command, damaged, whole, capsys),
    )
    assert answer.exit_code == expected.exit_code, answer.err
    counted = bitbench(capsys, "query", str(damaged.path), COUNTED, "--format", "csv")
    assert counted.out.split() == ["count_star()", str(len(before))]
    assert "damaged" not in counted.err

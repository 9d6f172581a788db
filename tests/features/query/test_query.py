"""Past studies as tables: what is documented is what is there, wherever the folders lie."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bitbench.features.query.studies import REFUSED, Studies
from bitbench.records.arrow_tables import make_arrow_table
from bitbench.records.folder import StudyFolder
from bitbench.records.kept_tables import KEPT_TABLES, write_kept_tables
from bitbench.records.lock import Lock
from bitbench.records.quality import SCORE_COLUMNS, CorpusFacts, QualityRecord
from bitbench.records.request_rows import RequestParts
from bitbench.records.strict_reader import make_arrow_schema
from bitbench.records.tables import REQUEST_COLUMNS, TABLES
from bitbench.records.trial import Memory, Outcome, TrialMetrics
from bitbench.study.study_file import format_study
from bitbench.util.errors import ExitCode, StoreError
from tests.command_line import bitbench
from tests.gallery import TWINS
from tests.support.synthetic import demo_study, make_instance, make_lock, make_trial, request_rows
from tests.thousand_studies import SUM, TRIALS_EACH, write_studies
from tests.unit.test_schedule import plan_of

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two studies (one below another folder, with a quote in its name), and quality of one."""
    place = tmp_path_factory.mktemp("past")
    plan, trials, instances, _ = demo_study()
    for name in ("one", "more/it's two"):
        with StudyFolder(place / name).open_writer() as writer:
            writer.write_study("name: demo\n")
            writer.write_lock(make_lock(plan))
            for instance in instances:
                writer.append_instance(instance)
            for number, trial in enumerate(trials):
                rows = (
                    request_rows({"planned_s": 0.0, "chunk_s": [0.1, 0.2]}) if number < 3 else None
                )
                parts = (
                    []
                    if rows is None
                    else [RequestParts.of(rows.slice(0, 1)), RequestParts.of(rows.slice(1))]
                )
                contents = tuple(content for part in parts for content in part.parts)
                writer.append_trial(trial, RequestParts(contents))
    _add_quality(place / "one")
    (place / "one" / "trials.jsonl").open("a").write(
        '{"id": "t99999", "kind": "meas'
    )  # just being written
    return place


def _add_quality(folder: Path) -> None:
    config = demo_study()[0].configs[0]
    record = QualityRecord(
        id="q00001",
        config=config,
        instance_id="i0001",
        started_at="2026-11-02T10:00:00.000+00:00",
        duration_s=3.0,
        outcome=Outcome.OK,
        corpus=CorpusFacts(
            description="text", text_hash="a", windows_hash="b", windows=2, window_tokens=3, room=8
        ),
        tokens=4,
    )
    scores = {
        "window": [0, 1, 2],  # the last one is longer, and in no perplexity
        "position": [1, 1, 1],
        "token": [7, 8, 9],
        "logprob": [-1.0, -3.0, -9.0],
        "top_tokens": [[], [], []],
        "top_logprobs": [[], [], []],
    }
    with StudyFolder(folder).open_writer() as writer:
        writer.append_quality(record, pa.table(scores, schema=make_arrow_schema(SCORE_COLUMNS)))


def test_a_table_that_does_not_exist_is_answered_with_those_that_do(place: Path) -> None:
    with pytest.raises(
        StoreError, match=r"there is no table trails; did you mean `trials`\? the tables are "
    ):
        Studies(place).query("SELECT * FROM trails")


def test_documented_columns_are_the_real_ones(place: Path) -> None:
    """In the code, in DuckDB and in docs/query.md."""
    text = (ROOT / "docs" / "query.md").read_text()
    studies = Studies(place)
    for name, table in TABLES.items():
        real = studies.describe_columns(name)
        assert [column for column, _ in real] == [column.name for column in table.columns], name
        section = re.search(rf"^### {name}\n(.*?)(?=^##|\Z)", text, re.DOTALL | re.MULTILINE)
        assert section, f"docs/query.md has no section {name}"
        documented = re.findall(
            r"^\| `(\w+)` \| ([^|]+) \| (.+?) \|$", section.group(1), re.MULTILINE
        )
        assert documented == [
            (column.name, kind.lower(), column.meaning.replace("|", "\\|"))
            for column, (_, kind) in zip(table.columns, real, strict=True)
        ]


def test_every_figure_of_a_trial_is_a_column() -> None:
    columns = [one.name for one in TABLES["trials"].columns]
    figures = [*TrialMetrics.model_fields, *Memory.model_fields]
    assert [name for name in columns if name in figures] == figures
    assert [one.name for one in TABLES["requests"].columns[3:]] == [
        column.name for column in REQUEST_COLUMNS
    ]


def test_all_studies_are_there_and_a_line_that_is_not_finished_is_not(place: Path) -> None:
    studies = Studies(place)
    _, rows = studies.query("SELECT folder, study, count(*) FROM trials GROUP BY ALL ORDER BY 1")
    count = len(demo_study()[1])
    assert rows == [("more/it's two", "demo", count), ("one", "demo", count)]
    _, rows = studies.query(
        "SELECT count(*) FROM requests WHERE folder = 'one' AND scheduled_s IS NULL"
    )
    assert rows == [(3,)]


def test_figures_join_with_what_was_asked(place: Path) -> None:
    _, rows = Studies(place).query(
        "SELECT engine, input_tokens, avg(output_throughput), max(peak_bytes) FROM trials "
        "WHERE kind = 'measured' AND outcome = 'ok' AND workload = 'interactive' AND engine = 'quick' GROUP BY ALL"
    )
    (row,) = rows
    assert row[:2] == ("quick", 128)
    assert row[2] == pytest.approx(300, rel=0.03)
    _, rows = Studies(place).query(
        "SELECT DISTINCT i.kernels[1] FROM trials t JOIN instances i USING (folder, engine) WHERE engine = 'quick'"
    )
    assert rows == [("CPUInt8ScaledMMLinearKernel for CompressedTensorsW8A8Int8",)]


def test_quality(place: Path) -> None:
    _, rows = Studies(place).query("SELECT folder, tokens, perplexity FROM quality")
    assert rows == [("one", 4, pytest.approx(2.718281828**2))]


def test_a_study_folder_itself_and_an_empty_one(place: Path, tmp_path: Path) -> None:
    assert Studies(place / "one").query("SELECT folder FROM studies")[1] == [(".",)]
    empty = Studies(tmp_path)
    assert [empty.count(name) for name in TABLES] == [0] * len(TABLES)


def test_a_place_that_is_not_there() -> None:
    with pytest.raises(StoreError, match="no folder"):
        Studies(Path("nowhere"))


def test_the_command(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = "SELECT engine, count(*) AS n FROM trials WHERE folder = 'one' GROUP BY 1 ORDER BY 1"
    said = bitbench(capsys, "query", str(place), asked, "--format", "csv")
    assert next(csv.reader(io.StringIO(said.out))) == ["engine", "n"]
    formula = bitbench(capsys, "query", str(place), "SELECT '=1+1' AS x", "--format", "csv")
    assert formula.out == "x\n'=1+1\n"
    rows = json.loads(bitbench(capsys, "query", str(place), asked, "--format", "json").out)
    assert {"engine": "broken", "n": 4} in rows
    shown = bitbench(capsys, "query", str(place))
    assert "trials  one row per trial" in shown.out
    assert "Output tokens of all requests" in shown.out
    wrong = bitbench(capsys, "query", str(place), "SELECT nothing FROM trials")
    assert wrong.exit_code == ExitCode.REFUSED
    assert 'Referenced column "nothing" not found' in wrong.err
    shutil.copytree(place / "one", tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    assert "demo" in bitbench(capsys, "query", "SELECT study FROM studies").out


def test_a_pipe_instead_of_records_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trials.jsonl")
    (tmp_path / "lock.json").symlink_to("/dev/zero")
    assert Studies(tmp_path).query("SELECT * FROM trials")[1] == []


WRITES = [
    "COPY (SELECT 1) TO 'PLACE/x.csv'",
    "COPY trials TO 'PLACE/x.parquet' (FORMAT parquet)",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO 'PLACE/x.csv'",
    "EXPORT DATABASE 'PLACE/x'",
    "ATTACH 'PLACE/x.db'",
    "CREATE PERSISTENT SECRET s (TYPE s3)",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM read_parquet('PLACE/one/requests/*.parquet')",
    "SET enable_external_access = true",
    "SET threads = 1",
    "RESET threads",
    "PRAGMA threads = 1",
    "PRAGMA profile_output = 'PLACE/x.json'",
    "CALL enable_logging(storage = 'file', storage_path = 'PLACE/x')",
    "SELECT * FROM enable_logging(storage = 'file', storage_path = 'PLACE/x')",
    "SELECT count(*) FROM trials; COPY (SELECT 1) TO 'PLACE/x.csv'",
]


@pytest.mark.parametrize("sql", WRITES)
def test_sql_reads_its_tables_and_nothing_else(
    sql: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(place.rglob("*"))
    said = bitbench(capsys, "query", str(place), sql.replace("PLACE", str(place)))
    assert (said.exit_code, said.out) == (ExitCode.REFUSED, "")
    assert said.err.startswith(
        "error: the query is refused: `bitbench query` only reads its own tables"
    )
    assert said.err.count("\n") == 1
    assert sorted(place.rglob("*")) == before


def test_no_variable_of_the_program_is_a_table(place: Path) -> None:
    with pytest.raises(StoreError, match="there is no table studies_of_a_test"):
        Studies(place).query("SELECT * FROM studies_of_a_test")
    assert REFUSED  # a global of this module, and no table either
    with pytest.raises(StoreError, match="there is no table REFUSED"):
        Studies(place).query("SELECT * FROM REFUSED")


def test_no_progress_bar_is_drawn_into_an_answer() -> None:
    """DuckDB takes a program without a file for one that a person types, and would draw one on stdout."""
    code = (
        "from pathlib import Path\n"
        "from bitbench.features.query.studies import Studies\n"
        "print(Studies(Path()).query(\"SELECT current_setting('{}')\")[1])"
    )
    command = [sys.executable, "-c", code.format("enable_progress_bar")]
    assert (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[(False,)]\n"
    )


@pytest.mark.parametrize(
    "sql",
    [
        "PIVOT (SELECT engine, outcome FROM trials) ON outcome USING count(*)",
        "DESCRIBE trials",
        "SUMMARIZE SELECT duration_s FROM trials",
        "EXPLAIN SELECT * FROM requests",
        "WITH ok AS (SELECT * FROM trials WHERE outcome = 'ok') SELECT max(started_at) FROM ok",
        "SELECT a.trial FROM requests a JOIN requests b USING (folder, trial) WHERE a.folder = 'one'",
    ],
)
def test_all_of_sql_that_reads_works(sql: str, place: Path) -> None:
    assert Studies(place).query(sql)[1]


def test_a_damaged_study_is_left_out_and_named(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(place, tmp_path / "past")
    with (tmp_path / "past" / "one" / "trials.jsonl").open("a") as lines:
        lines.write('"}\ngarbage\n')
    said = bitbench(
        capsys, "query", str(tmp_path / "past"), "SELECT count(*) FROM trials", "--format", "csv"
    )
    assert said.out.split() == ["count_star()", str(len(demo_study()[1]))]
    assert said.err.startswith("warning: 1 study folder left out: one (")
    assert "trials.jsonl:" in said.err
    assert "warning" not in bitbench(capsys, "query", str(place), "SELECT count(*) FROM trials").err


def test_damaged_rows_are_named(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(TWINS, tmp_path / "twins"))
    (folder / "requests" / "t00002.parquet").write_bytes(b"PAR1 is what it begins with, and PAR1")
    with pytest.raises(StoreError, match=r"t00002\.parquet"):
        Studies(tmp_path).query("SELECT max(end_s) FROM requests")


def test_sql_sees_what_a_lost_machine_took_back(tmp_path: Path) -> None:
    plan, folder = plan_of(), StudyFolder(tmp_path / "study")
    point = plan.points[0]
    with folder.open_writer() as writer:
        writer.write_study(format_study(plan.study))
        writer.write_lock(Lock(plan=plan))
        for outcome in (Outcome.OK, Outcome.LOST, Outcome.OK):
            instance, log = writer.new_instance()
            writer.append_instance(
                make_instance(
                    point.config,
                    0,
                    id=instance,
                    outcome=outcome,
                    host="m1",
                    log_file=f"logs/{log.name}",
                )
            )
            if outcome is Outcome.OK:
                writer.append_trial(make_trial(point, 0, 0, instance_id=instance), None)
    sql = "SELECT outcome FROM trials ORDER BY trial"
    assert Studies(tmp_path).query(sql)[1] == [("lost",), ("ok",)]
    assert [trial.outcome for trial in folder.trials()] == [Outcome.LOST, Outcome.OK]
    assert Studies(tmp_path).query("SELECT DISTINCT host FROM instances")[1] == [("m1",)]


@pytest.mark.parametrize("name", TABLES)
def test_python_and_sql_have_the_same_tables(name: str) -> None:
    table = make_arrow_table(StudyFolder(TWINS).read(), name)
    names, rows = Studies(TWINS).query(f"SELECT * FROM {name}")
    assert names == table.column_names
    assert sorted(map(repr, rows)) == sorted(repr(tuple(row.values())) for row in table.to_pylist())


def test_kept_tables_are_read_where_they_fit_the_records(tmp_path: Path) -> None:
    write_studies(tmp_path, 3)
    assert Studies(tmp_path).query(SUM)[1][0][:2] == (3, 3 * TRIALS_EACH)
    one = tmp_path / "study-0001" / "trials.jsonl"
    one.write_text("".join(one.read_text().splitlines(keepends=True)[:-1]))
    assert Studies(tmp_path).query(SUM)[1][0][:2] == (3, 3 * TRIALS_EACH - 1)
    columns = "SELECT engine, workload, turn, started_at FROM trials WHERE folder = '{}' AND block = 0 ORDER BY trial"
    parsed = Studies(tmp_path).query(columns.format("study-0001"))[1]
    assert parsed == Studies(tmp_path).query(columns.format("study-0000"))[1][: len(parsed)]
    write_kept_tables(StudyFolder(tmp_path / "study-0001"))
    assert len(list((tmp_path / "study-0001" / "tables").iterdir())) == len(KEPT_TABLES)


def test_a_kept_table_that_is_damaged_is_named(tmp_path: Path) -> None:
    write_studies(tmp_path, 1)
    (kept,) = (tmp_path / "study-0000" / "tables").glob("trials-*")
    kept.write_bytes(kept.read_bytes()[:-100])
    with pytest.raises(StoreError, match="is damaged"):
        Studies(tmp_path).query("SELECT max(duration_s) FROM trials")
    pq.write_table(pq.read_table(next(kept.parent.glob("studies-*"))), kept)
    with pytest.raises(StoreError, match="is damaged"):
        Studies(tmp_path).query("SELECT max(duration_s) FROM trials")

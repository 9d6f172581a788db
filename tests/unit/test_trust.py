"""A study file from elsewhere is code: what it uses is shown, and runs only once a person has allowed it."""

import json
from pathlib import Path
from textwrap import dedent

import pytest

from bitbench.api import interface
from bitbench.engines.registry import engine
from bitbench.measure import runner
from bitbench.measure.offers import LogObserver
from bitbench.measure.runner import STUDY_FILE, QualityOptions, measure_quality_study
from bitbench.measure.trust import FOLDER, Trust, trust_in
from bitbench.measure.workplace import Workplace
from bitbench.models.folder import has_code
from bitbench.records.folder import StudyFolder
from bitbench.study.study import Argument, EngineSetup, Study
from bitbench.study.study_file import StudySource, starter
from bitbench.util.errors import ExitCode, NotTrustedError, StoreError, StudyFileError
from bitbench.util.files import SafeFolder
from tests.command_line import bitbench
from tests.pseudo_terminal import on_terminal

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
STUDY = """\
name: x
seed: 1
engines:
  - {engine: endpoint, name: there, args: {url: "https://example.com", model: m}}
workloads: [interactive]
"""


def asked(place: Path, text: str) -> dict[str, str]:
    """What a study with this text would be asked about, and for what it is used."""
    place.mkdir(exist_ok=True)
    (place / "s.yaml").write_text(dedent(text))
    return {use.what: use.purpose for use in trust_in(place / "s.yaml", place / "home").asked}


def asks(name: str, **args: Argument) -> list[str]:
    return [use.what for use in engine(name).uses(EngineSetup(name=name, engine=name, args=args)) if use.asks]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_ask_nothing_but_what_their_comments_say(path: Path, tmp_path: Path) -> None:
    asked_for = [use.what.partition("=")[0] for use in trust_in(path, tmp_path).uses if use.asks]
    assert asked_for == (["speculative-config"] if path.stem == "tune" else [])
    assert all(name in path.read_text(encoding="utf-8") for name in asked_for)


def test_what_init_writes_asks_nothing(tmp_path: Path) -> None:
    assert asked(tmp_path, starter("cpu")) == {}


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "localhost:8000", "http://[::1]:1", "http://127.9.9.9/v1"])
def test_an_endpoint_on_this_machine_asks_for_nothing_but_an_unusual_key(url: str) -> None:
    assert asks("endpoint", url=url, model="m") == []
    assert asks("endpoint", url=url, model="m", api_key_env="AWS_SECRET_ACCESS_KEY") == ["AWS_SECRET_ACCESS_KEY"]


@pytest.mark.parametrize("host", ["example.com", "127.0.0.1.example.com", "10.0.0.1", "0.0.0.0", "localhost.evil"])
def test_an_endpoint_elsewhere_asks_for_its_address_and_every_key(host: str) -> None:
    assert asks("endpoint", url=f"https://{host}", model="m") == [f"https://{host}", "OPENAI_API_KEY"]


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("vllm", {"trust-remote-code": True}),
        ("vllm", {"trust_remote_code": True}),
        ("vllm", {"tool-parser-plugin": "x.py"}),
        ("vllm", {"dtype": "--trust-remote-code"}),
        ("vllm", {"compilation-config": "{}"}),
        ("vllm", {"quantization": "/tmp/x"}),
        ("llamacpp", {"log-file": "x"}),
        ("llamacpp", {"lora": "x"}),
        ("llamacpp", {"threads": "~/x"}),
        ("transformers", {"attn_implementation": "someone/kernel"}),
    ],
)
def test_an_argument_that_is_not_known_to_be_harmless_is_asked_for(name: str, args: dict[str, Argument]) -> None:
    assert len(asks(name, **args)) == 1


def test_arguments_that_only_tune_ask_nothing() -> None:
    assert asks("vllm", **{"enforce-eager": True, "max_model_len": 4096, "--kv-cache-dtype": "fp8", "no-async": 1}) == [
        "no-async=1"
    ]
    assert asks("llamacpp", threads=2, **{"no-mmap": True, "flash-attn": "on", "tensor-split": "3,1"}) == []
    assert asks("transformers", threads=2, attn_implementation="sdpa") == []
    assert asks("null", ttft="20ms", vary_instance=0.01, slow_requests="7,20") == []


def test_variables_ask_and_those_that_run_code_say_so(tmp_path: Path) -> None:
    variables = "{PYTHONPATH: evil, LD_PRELOAD: x.so, LD_LIBRARY_PATH: ., PYTHONSTARTUP: x, OMP_NUM_THREADS: '2'}"
    found = asked(tmp_path, f"name: x\nengines: [{{engine: null, env: {variables}}}]\nworkloads: [interactive]\n")
    assert found.pop("OMP_NUM_THREADS=2") == "set for null"
    assert len(found) == 4
    assert set(found.values()) == {"runs code in null"}


def test_files_ask_where_they_did_not_come_with_the_study(tmp_path: Path) -> None:
    place = tmp_path / "study"
    place.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (place / "mine.txt").write_text("text")
    (place / "link.txt").symlink_to(tmp_path / "secret.txt")
    for name, is_asked in (("mine.txt", False), ("link.txt", True), ("../secret.txt", True), ("a/../mine.txt", False)):
        found = asked(
            place,
            f"""
            name: x
            engines: ["null"]
            workloads: [{{name: w, concurrency: 1, input_tokens: 8, output_tokens: 8, text: {{file: {name}}}}}]
            """,
        )
        assert found == ({str(tmp_path / "secret.txt"): "its text is sent to the engines"} if is_asked else {}), name


@pytest.mark.parametrize(
    "files",
    [
        {"modeling.py": ""},
        {"sub/evil.py": ""},
        {"tokenizer_config.json": '{"auto_map": {}}'},
        {"config.1.0.0.json": '{"auto_map": {}}'},
    ],
)
def test_code_of_a_model_is_found_wherever_it_is_loaded_from(files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert not has_code(tmp_path)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert has_code(tmp_path)


def test_recipes_corpora_tasks_and_models_are_looked_at_too(tmp_path: Path) -> None:
    place, model = tmp_path / "study", tmp_path / "model"
    place.mkdir()
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"auto_map": {"AutoModel": "modeling.Evil"}}))
    (place / "r.yaml").write_text(
        "name: r\nsteps: [{step: quantize, weight_bits: 8}]\ncalibration: {source: /etc/passwd}\n"
    )
    found = asked(
        place,
        f"""
        name: x
        models: [{model}, smollm2-135m]
        recipes: [r.yaml, bf16]
        engines: [transformers]
        quality: {{corpus: /etc/hosts, tasks: [mine.yaml, hellaswag]}}
        """,
    )
    assert found == {
        "/etc/hosts": "its text is sent to the engines",
        str(place / "mine.yaml"): "runs code in lm-eval",
        "/etc/passwd": "its text is what compression is calibrated with",
        str(model): "a model with Python code, which an engine may run",
    }


def test_what_is_allowed_is_remembered_until_it_changes(tmp_path: Path) -> None:
    place, at = tmp_path / "s.yaml", Workplace(tmp_path / "home")
    place.write_text(STUDY)
    with pytest.raises(NotTrustedError, match=r"https://example\.com \(requests are sent to it\); OPENAI_API_KEY"):
        trust_in(place, at.home).require()
    trust_in(place, at.home).give()
    (answer,) = (tmp_path / "home" / FOLDER).iterdir()
    assert answer.stat().st_mode & 0o777 == 0o600
    assert "https://example.com" in answer.read_text()
    place.write_text(STUDY.replace("seed: 1", "seed: 2").replace("interactive", "base"))
    trust_in(place, at.home).require()
    for change in (("example.com", "example.org"), ("model: m}", "model: m, api_key_env: AWS_KEY}")):
        place.write_text(STUDY.replace(*change))
        assert not trust_in(place, at.home).is_given
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "s.yaml").write_text(STUDY)
    assert not trust_in(tmp_path / "elsewhere" / "s.yaml", at.home).is_given


def test_an_answer_that_somebody_else_could_have_written_is_none(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(STUDY)
    trust = trust_in(tmp_path / "s.yaml", tmp_path / "home")
    trust.give()
    (answer,) = (tmp_path / "home" / FOLDER).iterdir()
    answer.chmod(0o666)
    assert not trust.is_given
    trust.give()
    assert trust.is_given
    answer.rename(tmp_path / "other")
    answer.symlink_to(tmp_path / "other")
    assert not trust.is_given
    with pytest.raises(StoreError, match="is a link instead of a plain file; remove it"):
        trust.give()


def test_a_study_that_was_made_in_python_is_trusted(tmp_path: Path) -> None:
    setup = EngineSetup(name="e", engine="endpoint", args={"url": "https://example.com", "model": "m"})
    study = Study.model_validate({"name": "x", "engines": [setup], "workloads": ["interactive"]})
    trust = trust_in(study, tmp_path)
    assert any(use.asks for use in trust.uses)
    trust.require()


def test_plan_shows_everything_and_run_refuses_without_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BITBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "160")
    Path("s.yaml").write_text(STUDY)
    shown = bitbench(capsys, "plan", "s.yaml").out
    assert "What it would use" in shown
    assert [line.split()[:2] for line in shown.splitlines() if "asks first" in line] == [
        ["URL", "https://example.com"],
        ["variable", "OPENAI_API_KEY"],
    ]
    refused = bitbench(capsys, "run", "s.yaml")
    assert refused.exit_code == ExitCode.NOT_ALLOWED
    assert refused.err.startswith("error: s.yaml uses what has not been allowed on this machine: https://example.com")
    assert refused.err.count("\n") == 1
    assert not Path("x").exists()


def test_the_question_is_asked_once(tmp_path: Path) -> None:
    """The answer of a person at a terminal; the study fails afterwards, since it needs no more to be seen."""
    (tmp_path / "s.yaml").write_text(
        "name: x\nworkloads: [interactive]\nmeasure: {starts: 1, trials: 1}\n"
        "engines: [{engine: null, args: {fail: exit}, env: {OMP_NUM_THREADS: '1'}}]\n"
    )
    variables = {"BITBENCH_HOME": str(tmp_path / "home")}
    refused = on_terminal("run", "s.yaml", cwd=tmp_path, env=variables, answer=b"n\n")
    assert refused.exit_code == ExitCode.NOT_ALLOWED
    assert b"OMP_NUM_THREADS=1" in refused.output
    assert b"nothing was run" in refused.output
    assert not (tmp_path / "x").exists()
    allowed = on_terminal("run", "s.yaml", cwd=tmp_path, env=variables, answer=b"y\n")
    assert allowed.exit_code == ExitCode.NOTHING_MEASURED, allowed.output
    again = on_terminal("run", "s.yaml", cwd=tmp_path, env=variables)
    assert again.exit_code == ExitCode.NOTHING_MEASURED, again.output
    assert b"[y/N]" not in again.output


def test_what_runs_is_what_was_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though the file is another one by the time of the answer, which uses nothing more."""
    file = tmp_path / "s.yaml"
    file.write_text(STUDY)
    ran: list[str] = []

    def change(trust: Trust) -> None:
        give(trust)
        file.write_text(STUDY.replace("name: x", "name: another"))

    def run(study: Path | Study | StudySource, *__: object, **___: object) -> StudyFolder:
        ran.append(StudySource.of(study).study.name)
        raise NotTrustedError("seen")

    give = Trust.give
    monkeypatch.setenv("BITBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(Trust, "give", change)
    monkeypatch.setattr(runner, "measure_study", run)
    bitbench(capsys, "run", str(file), "--trust")
    file.write_text(STUDY)
    with pytest.raises(NotTrustedError):
        interface.run(file, tmp_path / "out", trust=True)
    assert ran == ["x", "x"]


def test_a_file_that_changes_to_use_more_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(STUDY)
    at = Workplace(tmp_path / "home")
    trust_in(file, at.home).give()
    file.write_text(STUDY.replace("example.com", "evil.example"))
    with pytest.raises(NotTrustedError, match=r"evil\.example"):
        runner.measure_study(file, tmp_path / "out", LogObserver(), at)


def test_only_what_was_typed_is_allowed_by_typing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of `bitbench quality`, whose study file lies in a folder that others may write to."""
    ran: list[Study] = []

    def write(files: SafeFolder, name: str, content: str, mode: int = 0o644) -> Path:
        path = written(files, name, content, mode=mode)
        if name == STUDY_FILE:
            path.write_text(STUDY)  # somebody was quicker than the reader
        return path

    def run(study: Path | Study | StudySource, *__: object, **___: object) -> None:
        ran.append(StudySource.of(study).study)

    written = SafeFolder.write
    monkeypatch.setattr(SafeFolder, "write", write)
    monkeypatch.setattr(runner, "measure_study", run)
    at = Workplace(tmp_path / "home")
    measure_quality_study(
        at, QualityOptions(model="smollm2-135m", recipes=("w8a8-rtn",)), tmp_path / "out", LogObserver()
    )
    assert [study.name for study in ran] == ["quality-smollm2-135m"]
    assert not (tmp_path / "home" / FOLDER).exists()


@pytest.mark.parametrize("task", ["/tmp/evil.txt", "./evil", "~/evil.YAML", "../evil", "evil/", "evil task", "-x", ""])
def test_a_task_that_is_a_path_is_no_name(task: str, tmp_path: Path) -> None:
    """lm-eval takes any path for a task file, and runs the code that it names."""
    with pytest.raises(StudyFileError, match=r"neither a name of lm-eval's registry nor a YAML file"):
        asked(tmp_path, f"{STUDY}quality: {{tasks: ['{task}']}}\n")

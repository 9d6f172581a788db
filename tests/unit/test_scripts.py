"""Every Python script of `scripts/` in its quickest form. Whatever needs a real engine, chromium or a network is
imported and asked for its help; the rest runs, with less to do and on copies of what it writes."""

import json
import os
import re
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from bitbench.engines.processes import free_port
from bitbench.loadgen.workers import LoadWorkers
from bitbench.ports import Load
from bitbench.study.study import EngineSetup
from tests.support.null_instance import NOTHING
from tests.support.study_folders import write_folder

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
PYTHON_SCRIPTS = sorted(
    path.name
    for path in SCRIPTS.iterdir()
    if path.is_file() and re.match(rb"#!.*python", path.read_bytes())
)
Loaded = Callable[[str], ModuleType]
Run = Callable[..., object]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Loaded:
    """A script as a module, whose sizes and places a test can change before it calls `main`."""
    monkeypatch.syspath_prepend(SCRIPTS)

    def load(name: str) -> ModuleType:
        loader = SourceFileLoader(name, str(SCRIPTS / name))
        spec = spec_from_loader(name, loader)
        assert spec is not None
        module = module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        loader.exec_module(module)
        return module

    return load


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    def call(module: ModuleType, *arguments: object) -> object:
        monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
        return module.main()

    return call


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder("demo", tmp_path_factory.mktemp("study") / "demo").path


@pytest.fixture(scope="module")
def client() -> Iterator[LoadWorkers]:
    with LoadWorkers() as workers:
        yield workers


def null(ttft: str, tpot: str) -> EngineSetup:
    return EngineSetup(name="null", engine="null", args={"ttft": ttft, "tpot": tpot})


@pytest.mark.parametrize("name", PYTHON_SCRIPTS)
def test_help_says_what_it_is_for_and_does_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    monkeypatch.setattr(sys, "argv", [f"scripts/{name}", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPTS / name), run_name="__main__")
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    purpose = re.search(r'"""(.*?)(?:\n\n|""")', (SCRIPTS / name).read_text(), re.DOTALL)
    assert purpose is not None
    assert " ".join(purpose[1].split()) in shown


def test_every_script_is_listed_for_contributors() -> None:
    listed = (SCRIPTS / "README.md").read_text()
    assert [name for name in PYTHON_SCRIPTS if f"`scripts/{name}`" not in listed] == []


def test_overhead_on_the_null_engine(
    loaded: Loaded, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(loaded("overhead"), "--trials", 2) in (
        0,
        1,
    )  # on a busy machine the limit may be missed
    out, err = capsys.readouterr()
    assert (
        len(
            re.findall(
                r"^null engine, 1 stream, (?:TTFT|TPOT) .* worst of 2 trials", out, re.MULTILINE
            )
        )
        == 2
    )
    assert re.fullmatch(r"trial 1 of 2, \d+ s left\ntrial 2 of 2\n", err)


def test_overhead_beside_a_bare_client_shows_its_progress(
    loaded: Loaded,
    client: LoadWorkers,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    overhead = loaded("overhead")
    monkeypatch.setattr(overhead, "WARM_UP_PAIRS", 1)
    few_tokens = overhead.VLLM_WORKLOAD.model_copy(update={"output_tokens": 3})
    monkeypatch.setattr(overhead, "VLLM_WORKLOAD", few_tokens)
    overhead.is_undisturbed(
        client, null("5ms", "300ms"), NOTHING, pairs=2
    )  # slow, so that a stall does not matter
    out, err = capsys.readouterr()
    assert re.search(
        r"through bitbench over a bare client: \d\.\d{4} .*, 2 pairs, limit 0\.98", out
    )
    assert re.fullmatch(r"pair 1 of 3, \d+ s left\npair 2 of 3, \d+ s left\npair 3 of 3\n", err)


@pytest.fixture
def shootout(loaded: Loaded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """Which writes into copies, and finds no models."""
    module = loaded("loadgen_shootout")
    monkeypatch.setenv("BITBENCH_HOME", str(tmp_path))
    for name in ("RESULTS", "DOCUMENT"):
        monkeypatch.setattr(module, name, Path(shutil.copy(getattr(module, name), tmp_path)))
    return module


def test_the_shootout_measures_and_replaces_its_row(
    shootout: ModuleType,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(shootout, "TOKENS", 3)
    before = json.loads(shootout.RESULTS.read_text())
    assert run(shootout, "--clients", "ours", "--levels", "16") == 0
    (row,) = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert row["problem"] is None
    assert row["truth"]["requests"] == row["requests"] == 32
    assert (
        row["ttft_p50_s"] > 0.099
    )  # the server waits for 100 ms; how late a busy machine reads is not tested
    is_other = [old for old in before if (old["client"], old["streams"]) != ("ours", 16)]
    assert json.loads(shootout.RESULTS.read_text()) == [*is_other, row]
    page = shootout.DOCUMENT.read_text()
    assert (
        f"| **bitbench** | {1e3 * row['ttft_p50_s']:.2f} / {1e3 * row['ttft_p99_s']:.2f} |" in page
    )
    assert f"**bitbench**: measured on {row['processor']}." in page


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--clients", "ours,wrk"], "unknown client wrk; choose of ours, reader, vllm, aiperf"),
        (["--clients", "ours,locust"], "bitbench model get smollm2-135m"),
    ],
)
def test_the_shootout_starts_only_with_what_it_needs(
    shootout: ModuleType,
    run: Run,
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = shootout.RESULTS.read_text()
    with pytest.raises(SystemExit, match="2"):
        run(shootout, *arguments)
    assert said in capsys.readouterr().err
    assert shootout.RESULTS.read_text() == before


def test_the_page_about_accuracy_says_what_was_measured(shootout: ModuleType, run: Run) -> None:
    assert run(shootout, "--table") == 0
    assert shootout.DOCUMENT.read_text() == (ROOT / "docs" / "accuracy.md").read_text()
    rows = {
        (row["client"], row["streams"]): row for row in json.loads(shootout.RESULTS.read_text())
    }
    for (client, _), row in rows.items():
        if client == "ours":  # what the page says that bitbench aims at, and stays within
            off = {
                name: abs(row[name] / row["truth"][name] - 1)
                for name in ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s")
            }
            assert off["ttft_p50_s"] < 0.005
            assert off["ttft_p99_s"] < 0.03
            assert off["tpot_p50_s"] < 0.005
    most, fewer = (f"{rows['ours', streams]['tokens_per_cpu_s']:,.0f}" for streams in (1024, 256))
    scale = (ROOT / "docs" / "internals" / "scale.md").read_text()
    assert f"{most} a CPU-second with 1,024 streams in a process, {fewer} with 256" in scale


def test_what_locust_measures_is_read(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By a stand-in for locust, which lives in an environment of its own."""
    peers = loaded("shootout_peers.py")
    listeners = SimpleNamespace(add_listener=lambda listener: listener)
    stand_in = SimpleNamespace(
        HttpUser=object, task=lambda work: work, events=SimpleNamespace(quitting=listeners)
    )
    monkeypatch.setitem(sys.modules, "locust", stand_in)
    target = peers.Target(
        "http://x", "key", "null", Path(), streams=1, requests=2, tokens=3, folder=tmp_path
    )
    for name, value in peers.environment(target).items():
        monkeypatch.setenv(name, value)
    locustfile = loaded("shootout_locustfile.py")
    user, ended = locustfile.StreamUser(), []
    user.client = SimpleNamespace(
        post=lambda *_, **__: SimpleNamespace(iter_lines=lambda: [b'{"text": ""}'] * 3)
    )
    user.environment = SimpleNamespace(runner=SimpleNamespace(quit=lambda: ended.append(True)))
    for _ in range(3):  # one more than is asked for
        user.stream()
    locustfile._write()
    figures = peers.PEERS["locust"].read(tmp_path)
    assert ended == [True]
    assert 0 < figures.ttft_p50_s <= figures.ttft_p99_s < 1
    assert locustfile.quantile([3.0, 1.0, 2.0], 0.25) == 1.5


def test_agreement_of_two_clients(
    loaded: Loaded,
    client: LoadWorkers,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The other one is ours, too: vLLM's bench needs vLLM."""
    agreement = loaded("agreement")
    monkeypatch.setattr(agreement, "run_theirs", agreement.run_ours)
    monkeypatch.setattr(agreement, "OUTPUT_TOKENS", 3)
    monkeypatch.setattr(agreement, "REQUESTS_PER_STREAM", 1)
    with agreement.running(null("5ms", "300ms"), Load(1, 600)) as endpoint:
        agreement.agree(agreement.Bench(client, endpoint, Path(), tmp_path), streams=1, rounds=2)
    out, err = capsys.readouterr()
    assert [line.split(":")[0] for line in out.splitlines()] == [
        f"1 streams, {figure}" for figure in ("TTFT", "TPOT", "output throughput")
    ]
    assert "1 streams, pair 3 of 3\n" in err


def test_unit_costs(
    loaded: Loaded, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = loaded("unit_costs")
    for name, value in {"ROWS": 50, "TOKENS": 4, "VALUES": 1_000, "REPETITIONS": 1}.items():
        monkeypatch.setattr(costs, name, value)
    run(costs)
    said = capsys.readouterr().out
    assert re.search(r"a row with chunk times: [\d,]+ B", said)
    assert "an event of the null server: 17" in said


def test_long_trial(loaded: Loaded, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    script = loaded("long_trial")
    run(script, "200", "--streams", "4")
    said = capsys.readouterr().out
    assert "200 requests, 0 failed" in said
    assert len(re.findall(r"most memory of (?:driver|load process)", said)) >= 2
    assert said.count("'requests': 200") == 2
    run(script, "100000", "--sum")
    assert "100,000 rows added up" in capsys.readouterr().out


def test_twins_of_the_gallery(loaded: Loaded, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run(loaded("twins"), ROOT / "examples" / "gallery" / "twins")
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0] for row in rows] == [
        "| rounds: engine",
        "| transformers",
        "| llamacpp",
        "| vllm",
    ]


def test_a_study_comes_into_the_gallery_without_paths_of_this_machine(
    loaded: Loaded, run: Run, study: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gallery = loaded("gallery")
    monkeypatch.setattr(gallery, "GALLERY", tmp_path)
    run(gallery, study, "shown")
    assert {path.name for path in (tmp_path / "shown").iterdir()} == {
        *("lock.json", "study.yaml", "trials.jsonl", "instances.jsonl", "report")
    }
    assert {path.name for path in (tmp_path / "shown" / "report").iterdir()} <= {
        "report.md",
        "figures",
    }
    leaky = Path(shutil.copytree(study, tmp_path / "leaky"))
    (leaky / "study.yaml").write_text("name: /home/somebody/secret\n")
    with pytest.raises(SystemExit, match="/home/somebody/secret"):
        run(gallery, leaky, "shown")
    assert (tmp_path / "shown" / "study.yaml").read_text() == "name: demo\n"


def test_the_gallery_is_checked_and_written_again(
    loaded: Loaded, run: Run, study: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gallery = loaded("gallery")
    monkeypatch.setattr(gallery, "GALLERY", tmp_path)
    run(gallery, study, "shown")
    report = tmp_path / "shown" / "report"
    page = (report / "report.md").read_text()
    assert run(gallery, "--check") == 0
    (report / "report.md").write_text(page + "more\n")
    assert run(gallery, "--check") == 1
    run(gallery)
    assert (report / "report.md").read_text() == page
    (report / "figures").mkdir(exist_ok=True)
    (report / "figures" / "earlier.svg").write_text("<svg/>")
    assert run(gallery, "--check") == 1
    run(gallery)
    assert run(gallery, "--check") == 0


def test_the_load_example_replaces_what_a_page_shows(
    loaded: Loaded, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The command itself is tested with the chain; here it is a short one."""
    example = loaded("load_example")
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- scripts/load_example -->\nold\n<!-- end -->\nafter\n")
    monkeypatch.setattr(example, "PAGE", page)
    monkeypatch.setattr(example, "SERVER", [str(free_port()), "ttft=1ms"])
    monkeypatch.setattr(example, "LOAD", "bitbench --version")
    run(example)
    assert re.fullmatch(
        r"before\n<!-- scripts/load_example -->\n```\n\$ scripts/null_endpoint \d+ ttft=1ms &\n"
        r"\$ bitbench --version\n.*\d+\.\d+.*\n```\n<!-- end -->\nafter\n",
        page.read_text(),
    )


def test_searches_are_compared_with_the_truth(
    loaded: Loaded, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = loaded("load_example")
    monkeypatch.setattr(example, "SERVER", [str(free_port()), "ttft=1ms"])
    search = {"rate": 30, "low": 20, "high": 35, "verified": 20, "refuted": [], "trials": 13}
    answer = json.dumps({"answer": {"search": search}})
    monkeypatch.setattr(example, "run_load", lambda *_: SimpleNamespace(stdout=answer))
    run(example, "--searches", 2)
    said = capsys.readouterr().out
    assert "truth, simulated: 29." in said
    assert "2 of 2 intervals contain the truth" in said


def test_searches_of_a_simulated_server_are_a_row(
    loaded: Loaded, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    coverage = loaded("search_coverage")
    page = tmp_path / "page.md"
    page.write_text("<!-- scripts/search_coverage -->\n<!-- end -->\n")
    monkeypatch.setattr(coverage, "PAGE", page)
    monkeypatch.setattr(coverage, "SERVERS", (("constant", coverage.CONSTANT, "ttft_p95=200ms"),))
    run(coverage, "--searches", 2)
    assert re.search(
        r"^\| constant \| `ttft_p95=200ms` \| 40/s \| 100 % \|", page.read_text(), re.MULTILINE
    )


def test_a_cast_has_a_screen_halfway_and_the_last(loaded: Loaded) -> None:
    cast = loaded("cast")
    (*_, last) = cast.record(["bitbench", "--version"])
    assert re.fullmatch(r"bitbench \d.*", last.text)
    shown = [
        cast.Screen(at_s, text)
        for at_s, text in ((1.0, "begins"), (3.0, "12.5 tok/s"), (8.0, "…"), (15.0, "end"))
    ]
    assert [screen.at_s for screen in cast.told(shown)] == [8.0, 15.0]


def test_the_lock_has_the_wheels_that_fit(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lock = loaded("lock")
    names = (
        "a-1.0-py3-none-any",
        "a-1.0-cp311-cp311-manylinux_2_28_x86_64",
        "a-1.0-cp311-cp311-win_amd64",
    )
    index = {
        f"{name}.whl": f"{number:064x}"
        for number, name in enumerate((*names, "a-1.1-py3-none-any"))
    }
    pinned = tmp_path / "engines" / "pinned" / "x.txt"
    pinned.parent.mkdir(parents=True)
    pinned.write_text("# why\na==1.0 \\\n    --hash=sha256:old\n")
    monkeypatch.setattr(lock, "SOURCES", tmp_path)
    monkeypatch.setattr(lock, "files", lambda _, version: index if version == "1.0" else {})
    assert lock.wanted() == {
        pinned: f"# why\na==1.0 \\\n    --hash=sha256:{0:064x} \\\n    --hash=sha256:{1:064x}\n",
    }
    pinned.write_text("a==2.0\n")
    with pytest.raises(SystemExit, match=r"no wheel for Linux .*: a==2"):
        lock.wanted()


def test_documents_are_written_or_checked(
    loaded: Loaded,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    written, page = loaded("written.py"), tmp_path / "page.md"
    page.write_text("a<b>old</b>c")

    def wanted() -> dict[Path, str]:
        return {page: written.between(page.read_text(), "<b>", "</b>", "new")}

    monkeypatch.setattr(sys, "argv", ["scripts/bold", "--check"])
    assert written.write_documents("", wanted) == 1
    assert "page.md is not what scripts/bold writes; run it" in capsys.readouterr().err
    assert page.read_text() == "a<b>old</b>c"
    monkeypatch.setattr(sys, "argv", ["scripts/bold"])
    assert written.write_documents("", wanted) == 0
    assert page.read_text() == "a<b>new</b>c"
    monkeypatch.setattr(sys, "argv", ["scripts/bold", "--check"])
    assert written.write_documents("", wanted) == 0
    page.write_text("no marks")
    with pytest.raises(SystemExit, match="no place"):
        wanted()


def test_the_walk_finds_the_commands_of_the_readme(loaded: Loaded, tmp_path: Path) -> None:
    walk = loaded("walk")
    commands = walk.commands((ROOT / "README.md").read_text())
    assert commands[0].startswith("pip install")
    assert "bitbench quick smollm2-135m gguf-q4_0 gguf-q8_0 --yes" in commands
    assert not set(commands) & set(walk.LEFT_OUT)
    assert walk.taken(f"\x1b[1mfirst\n{tmp_path}/a|b\n", tmp_path) == "./a\\|b"
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="is not empty"):
        walk.walk(tmp_path)


def read_workflow(name: str) -> tuple[dict[str, Any], list[str]]:
    """Return a workflow, and the command or the action of each of its steps."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    return workflow, [step.get("run") or step["uses"] for step in steps]


def test_ci_runs_scripts_that_exist() -> None:
    _, steps = read_workflow("ci.yml")
    scripts = {step.split()[0] for step in steps if step.startswith("scripts/")}
    assert scripts == {"scripts/setup", "scripts/check", "scripts/test", "scripts/wheel"}
    assert all(os.access(ROOT / script, os.X_OK) for script in scripts)


def test_only_a_pushed_tag_publishes() -> None:
    release, steps = read_workflow("release.yml")
    assert any(step.startswith("pypa/cibuildwheel@") for step in steps)
    condition = "startsWith(github.ref, 'refs/tags/v') && github.event_name == 'push'"
    assert release["jobs"]["publish"]["if"] == condition
    assert sum("gh-action-pypi-publish" in step for step in steps) == 1


def test_make_calls_scripts_that_exist() -> None:
    lines = (ROOT / "Makefile").read_text().splitlines()
    commands = [line.split()[0] for line in lines if line.startswith("\t") and "sed" not in line]
    assert len(commands) > 5
    assert all(os.access(ROOT / command, os.X_OK) for command in commands)

"""Nothing that lies in the working folder is imported: a module of every name that anything imports is planted there,
and every command runs in it, with all the Pythons that it starts."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

import bitbench
from bitbench.cli.app import app
from bitbench.planning.readiness import collect_environments
from tests.features.interop.test_import_tools import DATA
from tests.length import by_length
from tests.support.null_instance import running
from tests.support.quantize_stand_in import write_model
from tests.support.stand_in_environment import stand_in_python

# As the installed script starts it: its own folder is on the path, not that which it is started in.
BITBENCH = [sys.executable, "-P", "-c", "from bitbench.cli import main; main()"]
NOT_TRIED = (64, 70)  # what was typed is wrong; a defect
LONGEST_S = 300
STUDY = """
name: small
engines:
- {engine: null, name: a, args: {ttft: 1ms, tpot: 1ms}}
- {engine: null, name: b, args: {ttft: 1ms, tpot: 1ms}}
workloads: [{name: one, concurrency: 1, input_tokens: 8, output_tokens: 8}]
measure: {starts: 1, trials: 1}
"""
TUNE = """
name: tuned
engines: [{engine: null, args: {ttft: [1ms, 9ms], tpot: 1ms}}]
workloads: [{name: one, concurrency: 1, input_tokens: 8, output_tokens: 8}]
measure: {budget: 10s}
tune: {}
"""
# Stands where an environment's Python does: it says how it was started, and goes on as a real one with few packages.
PYTHON = '#!/bin/sh\necho "$PWD: $*" >> {log}\nexec {python} "$@"\n'
LOAD = "--concurrency 1 --requests 4 --trials 1 --output-tokens 8 --into load"
# By the command's name, in an order in which each finds what it needs.
COMMANDS = {
    "init": "init new.yaml",
    "schema": "schema",
    "recipes": "recipes",
    "doctor": "doctor",
    "plan": "plan small.yaml",
    "plan-gpu": "plan-gpu small.yaml --device-class l4",
    "run": "run small.yaml --into out",
    "run again": "run small.yaml --into again",
    "run --block": "run small.yaml --block 0 --into part",
    "join": "join part --into joined",
    "report": "report out",
    "recommend": "recommend out",
    "compare": "compare out again",
    "query": "query . 'select 1'",
    "history": "history . --point a",
    "publish": "publish out -o out.tar.gz",
    "verify": "verify out.tar.gz",
    "import": f"import {DATA / 'vllm-serve-1.json'} --from vllm --into imported",
    "export": "export out --to prometheus",
    "tune": "tune tune.yaml --into tuned",
    "load": f"load URL {LOAD}",
    "quick": "quick --into quick",
    "quantize": "quantize TINY -r w8a16-rtn",
    "mix": "mix TINY --limit bits=4.8 --into mixed",
    "quality": "quality TINY --recipes w8a16-rtn --into quality",
    "explain": "explain out b",
    "kernels": "kernels --quick --into kernels",
    "env create": "env create lmeval --index-url file:///nowhere",
    "env list": "env list",
    "model get": "model get smollm2-135m",
    "model get, a hub": "model get acme/Tiny-1B",
    "model list": "model list",
    "variant list": "variant list",
    "variant show": "variant show tiny",
    "variant rm": "variant rm tiny",
}
# The others start no Python, or the same as these do: `load` has the workers of `run`.
STARTING = {
    *("run", "quantize", "quality", "kernels"),
    *("env create", "model get", "model get, a hub"),
}
TRIED = by_length([name for name in COMMANDS if name in STARTING], [*COMMANDS])


@dataclass(frozen=True)
class Place:
    here: Path  # the folder that somebody was sent
    ran: Path  # names of the planted modules that were imported
    started: Path  # how environments' Pythons were started
    environment: dict[str, str]
    words: dict[str, str]

    def bitbench(self, command: str) -> subprocess.CompletedProcess[str]:
        given = [self.words.get(word, word.strip("'")) for word in _split(command)]
        return subprocess.run(
            [*BITBENCH, *given],
            cwd=self.here,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )


def _split(command: str) -> list[str]:
    start, quote, rest = command.partition(" '")
    return [*start.split(), *([quote.strip() + rest] if quote else [])]


def imported_names() -> set[str]:
    """Whatever bitbench, its workers, its libraries or Python itself may import."""
    texts = (
        path.read_text(encoding="utf-8") for path in Path(bitbench.__file__).parent.rglob("*.py")
    )
    written = {
        name
        for text in texts
        for name in re.findall(r"^ *(?:import|from) (\w+)", text, re.MULTILINE)
    }
    installed = {
        name for name in importlib.metadata.packages_distributions() if name.isidentifier()
    }
    by_python = {*sys.stdlib_module_names, *sys.modules, "sitecustomize", "usercustomize"}
    return {name.partition(".")[0] for name in {*written, *installed, *by_python}} - {"__main__"}


def plant(folder: Path, ran: Path) -> int:
    names = {name for name in imported_names() if name.isidentifier()}
    for name in names:
        (folder / f"{name}.py").write_text(
            f"with open({str(ran)!r}, 'a') as ran: ran.write({name!r} + '\\n')\n"
        )
    return len(names)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("working-folder")
    here, home, ran, started = (folder / name for name in ("here", "home", "ran", "started"))
    here.mkdir()
    assert plant(here, ran) > len(sys.stdlib_module_names)
    (here / "small.yaml").write_text(STUDY)
    (here / "tune.yaml").write_text(TUNE)
    packages = {
        "pip": "",
        "torch": "",
        "transformers": "",
        "huggingface_hub": "",
        "llmcompressor": "",
    }
    for name in collect_environments():
        python = stand_in_python(home / "envs" / name, **packages)
        real = python.rename(python.with_name("python-real"))
        python.write_text(PYTHON.format(log=started, python=real))
        python.chmod(0o755)
        manifest = {"name": name, "path": "", "complete": True}
        (python.parents[1] / "bitbench-environment.json").write_text(json.dumps(manifest))
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHON"))
    }
    paths = {"PYTHONPATH": str(Path(bitbench.__file__).parents[1]), "HF_HOME": str(folder / "hf")}
    ours = {"BITBENCH_HOME": str(home), "HF_ENDPOINT": "http://127.0.0.1:9", "PIP_NO_INDEX": "1"}
    store = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
    }
    with running({"ttft": "1ms", "tpot": "1ms"}, folder) as endpoint:
        words = {"TINY": str(write_model(folder / "tiny")), "URL": endpoint.url}
        yield Place(
            here,
            ran,
            started,
            {**variables, **paths, **ours, **store, "OPENAI_API_KEY": endpoint.api_key},
            words,
        )


def test_every_command_is_listed() -> None:
    commands = typer.main.get_command(app)
    names = set()
    for name, command in commands.commands.items():  # type: ignore[attr-defined]
        below = getattr(command.whole, "commands", None)
        names |= {name} if below is None else {f"{name} {inner}" for inner in below}
    assert names == COMMANDS.keys() & names


def test_what_is_planted_would_run(place: Place) -> None:
    """Else the others say nothing."""
    subprocess.run(
        [sys.executable, "-m", "venv", "new"], cwd=place.here, check=False, env=place.environment
    )
    assert place.ran.exists()
    place.ran.unlink()


@pytest.mark.parametrize("name", TRIED)
def test_no_command_runs_what_lies_in_the_working_folder(name: str, place: Place) -> None:
    done = place.bitbench(COMMANDS[name])
    print(done.stdout, done.stderr)
    assert done.returncode not in NOT_TRIED
    assert lines_of(place.ran) == []
    for line in lines_of(place.started):
        folder, _, words = line.partition(": ")
        assert folder != str(place.here), line
        assert words.startswith("-I "), line


def lines_of(file: Path) -> list[str]:
    """And nothing is left of it for the next command."""
    lines = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return lines

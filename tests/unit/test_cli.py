"""The command line: quick, light, and one sentence when something is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bitbench.ground.exit_codes import ExitCode


def bitbench(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bitbench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=60, check=False)


def test_help_imports_nothing_that_takes_time() -> None:
    """Standard library and typer alone: pydantic takes as long as all of that, numpy and rich not much less."""
    script = (
        "import sys\n"
        "from bitbench.cli.app import app\n"
        "app(['--help'], standalone_mode=False)\n"
        "print(*{name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "kernels" in done.stdout
    assert not {"pydantic", "numpy", "pyarrow", "rich", "yaml"} & set(done.stderr.split())


def test_importing_bitbench_imports_neither_torch_nor_an_engine() -> None:
    script = (
        "import sys, bitbench.lab.study\n"
        "heavy = {'torch', 'transformers', 'vllm', 'scipy.stats', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_mistake_is_one_sentence_and_a_traceback_only_on_request(tmp_path: Path) -> None:
    done = bitbench("plan", "none.yaml", cwd=tmp_path)
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.startswith("error: no study file none.yaml")
    assert "Traceback" not in done.stderr
    assert "Traceback" in bitbench("--debug", "plan", "none.yaml", cwd=tmp_path).stderr


def test_init_writes_a_file_that_the_schema_knows_and_never_overwrites(tmp_path: Path) -> None:
    assert bitbench("init", "new.yaml", cwd=tmp_path).returncode == 0
    again = bitbench("init", "new.yaml", cwd=tmp_path)
    assert again.returncode == ExitCode.USAGE
    assert "already exists" in again.stderr
    schema = json.loads(bitbench("schema").stdout)
    assert set(schema["required"]) == {"name", "engines"}


@pytest.mark.parametrize("command", [["env", "list"], ["model", "list"], ["doctor", "--quick"], ["--version"]])
def test_looking_around_always_works(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITBENCH_HOME", str(tmp_path))
    done = bitbench(*command)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("group", [(), ("env",), ("model",), ("variant",)])
def test_every_help_line_fits_a_terminal(group: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    usage, _, listed = bitbench(*group, "--help").stdout.partition("Commands:")
    assert usage.startswith("Usage:")
    lines = listed.strip().splitlines()
    assert len(lines) >= 2
    assert all(line.endswith(".") and not line.endswith(("...", "…")) for line in lines)

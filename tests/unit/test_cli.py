"""The command line: quick, light, and one sentence when something is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bitbench.util.errors import ExitCode
from tests.forked import bitbench_process

NULL_TOUR = Path(__file__).parent.parent.parent / "examples" / "null-tour.yaml"


def bitbench(*arguments: str, cwd: Path = Path()) -> subprocess.CompletedProcess[str]:
    return bitbench_process(*arguments, cwd=cwd)


# What takes a tenth of a second to import, or much more.
HEAVY = {"altair", "duckdb", "jinja2", "numpy", "pandas", "pyarrow", "scipy", "torch", "transformers", "uvloop", "vllm",
         "vl_convert"}  # fmt: skip


def packages_after(code: str) -> set[str]:
    return {name.partition(".")[0] for name in modules_after(code)}


def modules_after(code: str) -> set[str]:
    """What is imported once this has run in a Python of its own."""
    script = f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


def command_code(*arguments: str) -> str:
    return f"from bitbench.cli.app import app\napp({list(arguments)}, standalone_mode=False)"


def test_help_imports_nothing_that_takes_time() -> None:
    """Standard library and typer alone: pydantic takes as long as all of that, numpy and rich not much less."""
    assert not (HEAVY | {"pydantic", "rich", "yaml"}) & packages_after(command_code("--help"))


@pytest.mark.parametrize(
    "code",
    [
        "import bitbench.planning.plan",
        command_code("plan", str(NULL_TOUR)),
        command_code("recipes"),
        command_code("env", "list"),
    ],
)
def test_what_only_plans_or_lists_imports_nothing_heavy(code: str) -> None:
    assert not HEAVY & packages_after(code)


def test_what_measures_imports_neither_what_reports_nor_scipy() -> None:
    """scipy is imported by the first interval that is computed, what draws by the report."""
    measuring = packages_after("import bitbench.running.runner")
    assert {"numpy", "pyarrow"} <= measuring
    assert not HEAVY - {"numpy", "pyarrow", "uvloop"} & measuring


def test_a_report_needs_one_part_of_scipy_and_no_engine() -> None:
    """scipy.stats takes a second."""
    code = "import bitbench.cli.outcome, bitbench.reports.write, bitbench.reports.study, bitbench.analysis.intervals"
    modules = modules_after(f"{code}\nbitbench.analysis.intervals.compute_t_quantile(3, 0.9)")
    assert "scipy.special" in modules
    assert (
        not {
            "scipy.stats",
            "altair",
            "duckdb",
            "bitbench.running.runner",
            "bitbench.loadgen.client",
        }
        & modules
    )


def test_a_load_worker_imports_what_it_sends_and_writes_with() -> None:
    worker = packages_after("import bitbench.loadgen.worker_process")
    assert {"numpy", "pyarrow", "uvloop"} <= worker
    assert (
        not (HEAVY | {"rich", "typer", "yaml", "psutil"}) - {"numpy", "pyarrow", "uvloop"} & worker
    )


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
    assert set(schema["required"]) == {"engines"}


@pytest.mark.parametrize("command", [["env", "list"], ["model", "list"], ["doctor"], ["--version"]])
def test_looking_around_always_works(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BITBENCH_HOME", str(tmp_path))
    done = bitbench(*command)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("group", [(), ("env",), ("model",), ("variant",)])
def test_every_help_line_fits_a_terminal(
    group: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    usage, _, listed = bitbench(*group, "--help").stdout.partition("Commands:")
    assert usage.startswith("Usage:")
    lines = listed.partition("\n\n")[0].strip().splitlines()
    assert len(lines) >= 2
    assert all(line.endswith(".") and not line.endswith(("...", "…")) for line in lines)


def test_help_has_panels_on_one_screen_and_names_what_is_rare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = bitbench("--help").stdout.splitlines()
    assert len(lines) <= 42
    assert max(map(len, lines)) <= 80
    begins = {
        words[0]: words[1]
        for line in lines
        if len(words := line.split(maxsplit=2)) > 2 and line.startswith("  ")
    }
    assert begins["Measure"] == "quick"
    assert begins["Decide"] == "recommend"
    assert begins["Quantize"] == "recipes"
    assert begins["Share"] == "export"
    shown, _, rare = "\n".join(lines).partition("Also: ")
    assert "  Set up   doctor " in shown
    assert "schema" in rare
    assert "kernels" in rare
    assert "docs/cli.md" in rare
    assert "  kernels " not in shown


def test_help_of_load_has_panels_and_clean_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = bitbench("load", "--help").stdout
    panels = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert panels == ["Arguments:", "Load:", "Prompts:", "Server:", "Output:", "Options:"]
    shown, _, rare = text.partition("Also: ")
    assert "--nodes" not in shown
    assert "--nodes" in rare
    assert "load [OPTIONS] URL\n" in shown
    assert "--input-tokens N " in shown
    assert "[default: 128]" in shown
    assert not {"<", "x>=", "{"} & set(shown)
    assert "range" not in shown


def test_a_table_in_a_pipe_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    (line, *_) = [
        line
        for line in bitbench("recipes", "--device", "cpu").stdout.splitlines()
        if "w4a16-g128-gptq" in line
    ]
    description = (
        "4-bit weights in groups of 128, GPTQ, as most checkpoints on the hub have it (untested)"
    )
    assert " ".join(line.split()) == f"w4a16-g128-gptq ✓ vllm {description}"


def test_recipes_name_the_engines_that_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    said = bitbench("recipes", "--device", "cpu").stdout
    assert "w8a8-sparse-smooth-gptq " in said  # the longest name is whole
    assert "w4a16" in said

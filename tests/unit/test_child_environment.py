"""What a process that bitbench starts gets of our environment variables and of our working folder, and how a Python is
started: decided in one place each, for every child."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import bitbench
from bitbench.util.child_processes import (
    collect_bitbench_variables,
    collect_engine_variables,
    collect_tool_variables,
)

PACKAGE = Path(bitbench.__file__).parent
TOKENS = (
    "HF_TOKEN",
    "HF_TOKEN_PATH",
    "HUGGING_FACE_HUB_TOKEN",
    "HUGGINGFACE_HUB_TOKEN",
    "HUGGINGFACEHUB_API_TOKEN",
)
OF_OUR_PYTHON = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
STARTS_A_PROCESS = {
    "Popen",
    "run",
    "check_call",
    "check_output",
    "call",
    "create_subprocess_exec",
    "posix_spawn",
}


@pytest.fixture(autouse=True)
def everything_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*TOKENS, *OF_OUR_PYTHON, "HTTPS_PROXY", "HF_HOME"):
        monkeypatch.setenv(name, "ours")


@pytest.mark.parametrize(
    "made",
    [lambda: collect_engine_variables({}), collect_tool_variables, collect_bitbench_variables],
)
def test_no_child_gets_a_token_unless_it_needs_a_hub(made: Callable[[], dict[str, str]]) -> None:
    assert not made().keys() & set(TOKENS)


def test_a_token_that_lies_in_a_file_is_not_used_either() -> None:
    assert collect_tool_variables()["HF_HUB_DISABLE_IMPLICIT_TOKEN"] == "1"


def test_a_child_that_needs_a_hub_gets_the_token_and_still_nothing_of_our_python() -> None:
    made = collect_tool_variables({"KEY": "endpoint's"}, hub_token=True)
    assert {name: made[name] for name in (*TOKENS, "KEY")} == {
        **dict.fromkeys(TOKENS, "ours"),
        "KEY": "endpoint's",
    }
    assert not made.keys() & set(OF_OUR_PYTHON)


@pytest.mark.parametrize("made", [lambda: collect_engine_variables({}), collect_tool_variables])
def test_another_python_is_not_led_to_our_packages(made: Callable[[], dict[str, str]]) -> None:
    assert not made().keys() & set(OF_OUR_PYTHON)


def test_a_tool_finds_proxies_and_caches_and_an_engine_only_what_the_study_says() -> None:
    assert collect_tool_variables().items() >= {("HTTPS_PROXY", "ours"), ("HF_HOME", "ours")}
    engine = collect_engine_variables({"VLLM_CPU_KVCACHE_SPACE": "1"})
    assert engine["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert not engine.keys() & {"HTTPS_PROXY", "HF_HOME"}


def test_an_engine_counts_gpus_as_nvml_does_unless_it_is_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert collect_engine_variables({})["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert collect_engine_variables({})["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_bitbench_finds_its_packages_and_its_home_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(
        "PYTHONPATH", ":/packages:src:"
    )  # an empty entry would be the working folder
    monkeypatch.setenv("BITBENCH_HOME", "home")
    made = collect_bitbench_variables()
    assert made["PYTHONPATH"] == f"/packages:{tmp_path}/src"
    assert made["BITBENCH_HOME"] == f"{tmp_path}/home"


def test_every_process_is_started_with_such_an_environment_in_a_folder_that_is_named() -> None:
    """Workers are left out: they run in one already, and pass it on."""
    sources = [
        path
        for path in PACKAGE.rglob("*.py")
        if path.parent.name != "workers" and path.name != "guardian.py"
    ]
    calls = [(path.name, call) for path in sources for call in process_calls(path)]
    assert len(calls) > 5
    for name, call in calls:
        assert {"env", "cwd"} <= {keyword.arg for keyword in call.keywords}, (
            f"{name}, line {call.lineno}"
        )


def test_no_other_place_says_how_a_python_is_started() -> None:
    """Workers are left out: they cannot import it, and are started in a folder that was named."""
    begins_a_command = re.compile(
        r"(?:\[|[=*] ?\()(?:str\()?(?:sys\.executable|(?:\w+\.)*python)\)?,"
    )
    spelling = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if path.parent.name != "workers"
        and begins_a_command.search(path.read_text(encoding="utf-8"))
    }
    assert spelling == {"util/child_processes.py"}


def process_calls(path: Path) -> Iterator[ast.Call]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "subprocess"
        for alias in node.names
    } & STARTS_A_PROCESS
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            if function in imported or function in {
                f"subprocess.{name}" for name in STARTS_A_PROCESS
            }:
                yield node


def test_no_other_place_decides_about_them() -> None:
    deciding = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if "os.environ.items()" in path.read_text(encoding="utf-8")
        or "**os.environ" in path.read_text(encoding="utf-8")
    ]
    assert deciding == ["util/child_processes.py"]

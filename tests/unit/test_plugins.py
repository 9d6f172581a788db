"""Packages that add to bitbench and cannot be loaded: named in one warning, and nothing else stops."""

import sys
from pathlib import Path

import pytest

from bitbench.engines import registry
from bitbench.util.errors import ExitCode, StudyFileError
from bitbench.util.plugins import PluginWarning
from tests.command_line import bitbench

SENTENCE = (
    "The package some-engine 1.2 (bitbench.engines) cannot be loaded: "
    "ModuleNotFoundError: No module named 'nowhere_to_be_found'; update or uninstall it."
)
STUDY = "name: s\nengines:\n  - engine: '{engine}'\nworkloads: [interactive]\n"


class Package:
    """An installed package with entry points, on sys.path while the test runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._metadata = folder / "some_engine-1.2.dist-info"
        self._metadata.mkdir()
        (self._metadata / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: some-engine\nVersion: 1.2\n"
        )

    def offer(self, group: str, line: str) -> None:
        (self._metadata / "entry_points.txt").write_text(f"[{group}]\n{line}\n")

    def write_module(self, code: str) -> None:
        (self._folder / "some_engine.py").write_text(code)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "some_engine", raising=False)
    monkeypatch.setenv("BITBENCH_HOME", str(tmp_path / "home"))
    made = Package(site)
    made.offer("bitbench.engines", "broken = some_engine:Engine")
    made.write_module("import nowhere_to_be_found\n")
    return made


@pytest.mark.parametrize("command", [["doctor"], ["recipes"], ["env", "list"]])
@pytest.mark.usefixtures("package")
def test_commands_that_look_at_all_engines_go_on_with_one_warning(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    answer = bitbench(capsys, *command)
    assert answer.exit_code == 0
    assert answer.err == f"warning: {SENTENCE}\n"
    assert "vllm" in answer.out


@pytest.mark.usefixtures("package")
def test_only_a_study_that_names_the_engine_is_stopped(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(STUDY.format(engine="null"))
    assert bitbench(capsys, "plan", str(study)).err == ""
    study.write_text(STUDY.format(engine="broken"))
    answer = bitbench(capsys, "plan", str(study))
    assert answer.exit_code == ExitCode.USAGE
    assert answer.err.startswith("error: ")
    assert "study.yaml:3" in answer.err
    assert f"The engine broken cannot be used. {SENTENCE}" in answer.err


@pytest.mark.parametrize(
    ("module", "cause"),
    [
        ("raise RuntimeError('no driver\\nlong story')", "RuntimeError: no driver;"),
        (
            "class Engine:\n    def __init__(self):\n        raise OSError('no file')",
            "OSError: no file;",
        ),
        ("Other = 1", "has no attribute 'Engine';"),
    ],
)
def test_whatever_goes_wrong_is_told_in_a_sentence(
    package: Package, module: str, cause: str
) -> None:
    package.write_module(module)
    with pytest.warns(PluginWarning, match=cause):
        loaded = registry.engines()
    assert {"null", "vllm"} <= loaded.keys()
    assert "broken" not in loaded
    with pytest.raises(StudyFileError, match=cause):
        registry.engine("broken")

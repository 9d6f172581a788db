"""`bitbench quick` of two GGUF files of a hub, on real llama.cpp: which is faster, and what it loses.

The hub runs on this machine; what it serves was made by recipes from the catalog's model. Needs the environment
llamacpp and the model smollm2-135m.
"""

import re
from pathlib import Path

import pytest

from bitbench.machine.workplace import get_default_home
from bitbench.planning import quick_study
from bitbench.records.folder import StudyFolder
from tests.command_line import bitbench
from tests.support.hub_server import Repository, hub_server

pytestmark = [pytest.mark.timeout(1200), pytest.mark.alone]
RECIPES = {"gguf-q4_0": "Q4_0", "gguf-q8_0": "Q8_0"}


def test_two_files_of_a_hub_are_downloaded_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    home, files = get_default_home(), {}
    for recipe, type in RECIPES.items():
        made = bitbench(capsys, "quantize", "smollm2-135m", "--recipe", recipe)
        assert made.exit_code == 0, made.err
        (gguf,) = (home / "variants").glob(f"smollm2-135m--{recipe}--*/checkpoint/*.gguf")
        files[f"small-135m.{type}.gguf"] = gguf.read_bytes()
    own = tmp_path / "home"
    own.mkdir()
    (own / "envs").symlink_to(home / "envs")
    monkeypatch.setenv("BITBENCH_HOME", str(own))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(quick_study, "SPEED_S", 45.0)
    names = [f"other/Small-135M-GGUF:{type}" for type in RECIPES.values()]
    with hub_server() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.repositories["other/Small-135M-GGUF"] = Repository(
            {"c" * 40: files}, {"main": "c" * 40}
        )
        asked = bitbench(capsys, "quick", *names)
        assert re.search(r"model +other/Small-135M-GGUF:Q4_0 +unknown +8\d\.\d MiB", asked.out), (
            asked.out
        )
        answer = bitbench(capsys, "quick", *names, "--into", "out", "--yes")
    assert answer.exit_code == 0, answer.out + answer.err
    study = StudyFolder.existing(tmp_path / "out").read().study
    assert study.baseline == "Small-135M-GGUF/gguf-q8_0 @ llamacpp"
    said = " ".join(answer.out.split())
    assert "KL divergence" in said
    assert "to go on: edit out.yaml" in said

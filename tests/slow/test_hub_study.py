"""A study of what people have: a model of a hub, somebody else's W8A8 checkpoint, a GGUF repository, on real engines.

The hub runs on this machine and speaks the hub's API; what it serves are real files, made by the recipes `w8a8-rtn` and
`gguf-q8_0` from the catalog's model. Needs the environments vllm, transformers, quantize and llamacpp, and the model
smollm2-135m.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bitbench.machine.workplace import get_default_home
from bitbench.records.folder import StudyFolder
from bitbench.records.trial import Outcome
from tests.support.hub_server import Repository, hub_server

pytestmark = pytest.mark.timeout(1800)

COMMITS = {
    "acme/Small-135M": "a" * 40,
    "other/Small-135M-W8A8": "b" * 40,
    "other/Small-135M-GGUF": "c" * 40,
}
STUDY = """
name: hub
models: [acme/Small-135M]
variants:
  - {of: acme/Small-135M, checkpoint: other/Small-135M-W8A8}
  - {of: acme/Small-135M, checkpoint: "other/Small-135M-GGUF:Q8_0"}
engines:
  - {engine: vllm, args: {enforce-eager: true}}
  - {engine: llamacpp, args: {threads: 1}}
workloads:
  - {name: short, concurrency: 1, input_tokens: 32, output_tokens: 8}
measure: {starts: 2, trials: 2}
quality: {windows: 8, window_tokens: 64, answer_tokens: 8}
"""


def bitbench(*words: str, cwd: Path, **env: str) -> str:
    command = [sys.executable, "-m", "bitbench", *words]
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_study_with_a_hub_id_and_the_checkpoints_of_others(tmp_path: Path) -> None:
    home, recipes = get_default_home(), ("w8a8-rtn", "gguf-q8_0")
    for recipe in recipes:
        bitbench("quantize", "smollm2-135m", "--recipe", recipe, cwd=tmp_path)
    made = {
        recipe: next((home / "variants").glob(f"smollm2-135m--{recipe}--*/checkpoint"))
        for recipe in recipes
    }
    (gguf,) = made["gguf-q8_0"].glob("*.gguf")
    content = {
        "acme/Small-135M": files_of(home / "models" / "smollm2-135m"),
        "other/Small-135M-W8A8": files_of(made["w8a8-rtn"]),
        "other/Small-135M-GGUF": {"small-135m.Q8_0.gguf": gguf.read_bytes()},
    }
    own = tmp_path / "home"
    own.mkdir()
    (own / "envs").symlink_to(home / "envs")
    with hub_server() as hub:
        for name, files in content.items():
            hub.repositories[name] = Repository({COMMITS[name]: files}, {"main": COMMITS[name]})
        env = {"BITBENCH_HOME": str(own), "HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": hub.url}
        for name in ("acme/Small-135M", "other/Small-135M-W8A8", "other/Small-135M-GGUF:Q8_0"):
            bitbench("model", "get", name, cwd=tmp_path, **env)
        (tmp_path / "study.yaml").write_text(STUDY)
        bitbench("run", "study.yaml", "--into", "out", cwd=tmp_path, **env)
    folder = StudyFolder.existing(tmp_path / "out")
    outcomes = {
        trial.point.config.name: trial.outcome
        for trial in folder.trials()
        if trial.kind == "measured"
    }
    assert outcomes == {
        "Small-135M/bf16 @ vllm": Outcome.OK,
        "Small-135M/w8a8 @ vllm": Outcome.OK,
        "Small-135M/gguf-q8_0 @ llamacpp": Outcome.OK,
    }
    assert {variant.commit for variant in folder.read().plan.variants} == set(COMMITS.values())
    scored = {record.config.name: record.outcome for record in folder.read_quality_records()}
    assert scored == outcomes
    report = (folder.report / "report.md").read_text(encoding="utf-8")
    assert "w8a8 @ vllm" in report

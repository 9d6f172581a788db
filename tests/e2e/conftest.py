"""One study for several files: starting vLLM is what these tests cost."""

import subprocess
import sys

import pytest

from bitbench.store.folder import StudyFolder

RECIPES_STUDY = """
name: recipes
models: [smollm2-135m]
recipes: [bf16, w8a8-rtn, w4a16-rtn, w8a16-rtn]
engines:
  - {engine: vllm, args: {enforce-eager: true}}
  - transformers
workloads:
  - {name: short, concurrency: 1, input_tokens: 32, output_tokens: 8}
measure: {instances: 1, trials: 2}
baseline: smollm2-135m/bf16 @ vllm
quality: {windows: 32, window_tokens: 128, answer_tokens: 8}
"""


@pytest.fixture(scope="session")
def recipes_study(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    place = tmp_path_factory.mktemp("recipes")
    (place / "study.yaml").write_text(RECIPES_STUDY)
    command = [sys.executable, "-m", "bitbench", "run", "study.yaml", "--into", "out"]
    subprocess.run(command, cwd=place, check=True, timeout=1500)
    return StudyFolder.existing(place / "out")

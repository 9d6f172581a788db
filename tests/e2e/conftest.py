"""One study for several files: starting vLLM is what these tests cost."""

import os
from pathlib import Path

import pytest
import yaml

from bitbench.records.folder import StudyFolder
from tests.busy_machine import run_study

EXAMPLE = Path(__file__).parents[2] / "examples" / "first-look.yaml"
WINDOWS = (
    32  # of text: with fewer, rounding in other kernels moves the mean by more than is allowed
)
# The first example of the README with the same engines, but a recipe that is made, quality, and requests as short as
# they can be. Each config is started twice.
CHANGES = f"""
name: recipes
recipes: [bf16, w8a8-rtn]
engines:
  - transformers
  - {{engine: vllm, args: {{enforce-eager: true}}}}
workloads:
  - {{name: short, concurrency: 1, input_tokens: 32, output_tokens: 8}}
  - {{name: eight, concurrency: 8, input_tokens: 32, output_tokens: 8}}
measure: {{starts: 2, trials: 2}}
baseline: smollm2-135m/bf16 @ vllm
quality: {{windows: {WINDOWS}, window_tokens: 128, answer_tokens: 8}}
"""


@pytest.fixture(scope="session")
def recipes_study(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    """Or the folder in $BITBENCH_E2E_STUDY, so that a developer can look at one run for long."""
    if ready := os.environ.get("BITBENCH_E2E_STUDY"):
        return StudyFolder.existing(Path(ready))
    place = tmp_path_factory.mktemp("recipes")
    study = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8")) | yaml.safe_load(CHANGES)
    (place / "study.yaml").write_text(yaml.safe_dump(study))
    return run_study(place, "study.yaml", timeout_s=1500)

"""Tasks of lm-eval against running transformers and llama.cpp endpoints, without a network.

Slow, because making the environments takes minutes: bitbench env create lmeval, transformers, llamacpp.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bitbench.engines.environments import environment_python
from bitbench.machine.workplace import get_default_home
from bitbench.records.folder import StudyFolder
from bitbench.util.errors import EngineEnvironmentError

pytestmark = pytest.mark.timeout(900)

TASKS = Path(__file__).parents[2] / "examples" / "tasks"
WRITTEN = """
task: written
dataset_path: json
dataset_kwargs: {data_files: written.jsonl}
test_split: train
output_type: generate_until
doc_to_text: "Count: one, two, three, four,"
doc_to_target: "{{next}}"
generation_kwargs: {until: [","], max_gen_toks: 8}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    return measured(tmp_path_factory.mktemp("tasks"), engine="transformers", recipe="bf16")


@pytest.fixture(scope="module")
def on_llamacpp(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    return measured(tmp_path_factory.mktemp("tasks"), engine="llamacpp", recipe="gguf-bf16")


def measured(place: Path, engine: str, recipe: str) -> StudyFolder:
    try:
        for needed in ("lmeval", engine):
            environment_python(needed, get_default_home())
    except EngineEnvironmentError as error:
        pytest.skip(str(error))
    (place / "written.yaml").write_text(WRITTEN)
    (place / "written.jsonl").write_text('{"next": " five"}\n' * 3)
    command = [
        sys.executable,
        "-m",
        "bitbench",
        "quality",
        "smollm2-135m",
        "--recipes",
        recipe,
        "--engine",
        engine,
    ]
    command += ["--windows", "2", "--window-tokens", "32", "--no-answers", "--into", "out"]
    command += ["--tasks", f"{TASKS / 'capitals.yaml'},written.yaml,no_such_task"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    subprocess.run(command, cwd=place, check=True, timeout=600, env={**os.environ, **offline})
    return StudyFolder.existing(place / "out")


def test_likelihoods_and_texts_are_scored_with_their_standard_errors(folder: StudyFolder) -> None:
    (record,) = folder.read_quality_records()
    results = {(one.task, one.metric): one for one in record.tasks}
    capitals = results["capitals", "acc,none"]
    assert capitals.samples == 24
    assert capitals.value > 0.5  # by chance 0.25
    assert capitals.standard_error is not None
    assert 0 < capitals.standard_error < 0.2
    assert results["written", "exact_match,none"].samples == 3
    assert record.versions["lm-eval"]


def test_a_task_that_fails_leaves_the_others_alone(folder: StudyFolder) -> None:
    (record,) = folder.read_quality_records()
    (failure,) = record.task_failures
    assert failure.task == "no_such_task"
    assert "no_such_task" in failure.cause
    assert "capitals" in (folder.report / "report.md").read_text(encoding="utf-8")


def test_llama_cpp_runs_tasks_that_write_and_refuses_those_that_compare_likelihoods(
    on_llamacpp: StudyFolder,
) -> None:
    (record,) = on_llamacpp.read_quality_records()
    assert {one.task for one in record.tasks} == {"written"}
    causes = {Path(failure.task).name: failure.cause for failure in record.task_failures}
    assert set(causes) == {"capitals.yaml", "no_such_task"}
    assert "run it on vllm or transformers" in causes["capitals.yaml"]

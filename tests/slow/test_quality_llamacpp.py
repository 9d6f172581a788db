"""Quality on real llama.cpp: against a plain computation, against another start, and what four bits cost."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bitbench.analysis.results.summary import ConfigQuality
from bitbench.engines.environments import environment_python
from bitbench.engines.llamacpp import LlamaCppEngine
from bitbench.machine.workplace import get_default_home
from bitbench.planning.variants import VariantStore
from bitbench.ports import Launch, Load
from bitbench.quality.logprobs import InstanceConnection
from bitbench.quality.measure import make_asker, score_windows
from bitbench.records.folder import StudyFolder
from bitbench.records.quality import QualityRecord
from bitbench.reports.write import StudyReport
from bitbench.study.quality import Scoring
from bitbench.study.study import EngineSetup
from bitbench.util.errors import EngineEnvironmentError

pytestmark = pytest.mark.timeout(900)  # seconds for one test, with what its fixtures run

MODEL = "smollm2-135m"
WINDOWS, TOKENS, TOP = 4, 64, 32
# Two threads wait for each other in a loop: where other work takes a core, a token takes ten times as long.
ARGS = {"threads": 1}
STUDY = f"""
name: gguf-quality
models: [{MODEL}]
recipes: [gguf-bf16, gguf-q4_0]
engines: [{{engine: llamacpp, args: {json.dumps(ARGS)}}}]
workloads:
  - {{name: short, concurrency: 2, input_tokens: 32, output_tokens: 8}}
measure: {{starts: 1, trials: 2}}
quality: {{windows: {WINDOWS}, window_tokens: {TOKENS}, top_tokens: {TOP}, answer_tokens: 4}}
"""
# In 32 bits, because of the two it is the closer one: llama.cpp rounds fewer numbers to bf16 than transformers does.
PLAIN = """
import json, sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
with torch.inference_mode():
    for window in json.load(open(sys.argv[2]))["windows"]:
        ids = torch.tensor([window])
        known = torch.log_softmax(model(ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])
        print(json.dumps(known[:, 0].tolist()))
"""


@pytest.fixture(scope="module")
def python() -> Path | None:
    """Of llama.cpp's environment; None where its server is on the PATH."""
    environment = LlamaCppEngine().environment
    try:
        return environment_python(environment, get_default_home()) if environment else None
    except EngineEnvironmentError as error:
        pytest.skip(f"llama.cpp takes longer to compile than CI should: {error}")


@pytest.fixture(scope="module")
def study(python: Path | None, tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    del python  # it is there
    place = tmp_path_factory.mktemp("gguf-quality")
    (place / "study.yaml").write_text(STUDY)
    command = [sys.executable, "-m", "bitbench", "run", "study.yaml", "--into", "out"]
    subprocess.run(command, cwd=place, check=True, timeout=600)
    return StudyFolder.existing(place / "out")


def record(study: StudyFolder, recipe: str) -> QualityRecord:
    return next(
        one for one in study.read_quality_records() if one.config.variant == f"{MODEL}/{recipe}"
    )


def quality(study: StudyFolder, recipe: str) -> ConfigQuality:
    return next(
        one
        for one in StudyReport(study, get_default_home()).summary.quality
        if one.config.variant == f"{MODEL}/{recipe}"
    )


def plain_logprobs(study: StudyFolder) -> "np.typing.NDArray[np.float64]":
    """Of every scored token, in the order of the rows."""
    home = get_default_home()
    done = subprocess.run(
        [environment_python("transformers", home), "-I", "-c", PLAIN, home / "models" / MODEL,
         study.quality / f"windows-{MODEL}.json"],
        check=True, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    return np.concatenate([json.loads(line) for line in done.stdout.splitlines()])


def test_log_probabilities_are_those_of_a_plain_computation(study: StudyFolder) -> None:
    plain = plain_logprobs(study)
    found = study.scores_of(record(study, "gguf-bf16"))["logprob"].to_numpy()
    assert len(found) == WINDOWS * (TOKENS - 1)
    assert (
        np.sqrt(np.mean((found - plain) ** 2)) < 0.03
    )  # nats; 0.016 was measured, and 0.05 for transformers in bf16
    perplexity = quality(study, "gguf-bf16").estimates["perplexity"].value
    assert perplexity == pytest.approx(
        math.exp(-plain.mean()), rel=0.004
    )  # 252 tokens of the above: four errors


def test_another_start_gives_the_same_numbers_whatever_ran_before(
    study: StudyFolder, python: Path | None, tmp_path: Path
) -> None:
    """That of the study has two slots and answered a workload first."""
    material = study.material(MODEL)
    assert material is not None
    variant = VariantStore(get_default_home(), Path()).variant(MODEL, "gguf-bf16")
    setup = EngineSetup(name="llamacpp", engine="llamacpp", args=dict(ARGS))
    launch = Launch(setup, variant, python, tmp_path / "log", loads=(Load(1, TOKENS + 1),), seed=0)
    instance = LlamaCppEngine().start(launch)
    try:
        with InstanceConnection(instance.wait_ready(120.0), 60.0) as connection:
            asker = make_asker(Scoring.NEXT_TOKEN, connection)
            again = score_windows(asker, material.windows[:1], TOP, lambda _: None)
    finally:
        instance.stop()
    first = study.scores_of(record(study, "gguf-bf16"))
    assert again.to_pylist() == first.slice(0, TOKENS - 1).to_pylist()


def test_four_bits_are_compared_with_the_unquantized_file(study: StudyFolder) -> None:
    dense, four = quality(study, "gguf-bf16"), quality(study, "gguf-q4_0")
    assert dense.baseline == four.baseline == dense.config
    assert dense.estimates["kl_mean"].value == 0.0
    assert dense.estimates["top1_agreement"].value == 1.0
    assert four.estimates["kl_mean"].value > 0.05
    assert four.estimates["top1_agreement"].value < 0.9
    assert four.answers == 12
    assert four.equal_answers is not None
    report = (study.report / "report.md").read_text(encoding="utf-8")
    section = report.partition("## Quality")[2].partition("\n## ")[0]
    for word in (
        "Output, short (tok/s)",
        "Weights (MiB)",
        "Perplexity",
        "gguf-q4_0",
        "Answers side by side",
    ):
        assert word in section

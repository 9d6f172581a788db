"""Workers of quality and models in another Python, with stand-ins for the packages that they import there."""

import json
from pathlib import Path

import pytest

from bitbench.models import fetch
from bitbench.ports import Endpoint
from bitbench.quality.corpus import Corpus
from bitbench.quality.material import make_material
from bitbench.quality.tasks import TaskOutcome, TaskTools, run_tasks
from bitbench.study.quality import Quality, Scoring
from bitbench.util.errors import ModelError, QualityError
from tests.unit.stand_in_environment import stand_in_python

# A token per character; 1 begins every text, 2 is special too.
TRANSFORMERS = """
print("what a library prints")
class AutoTokenizer:
    all_special_ids = [2, 1]
    chat_template = None
    @classmethod
    def from_pretrained(cls, folder):
        if folder.endswith("broken"):
            raise ValueError("no tokenizer.json\\nand more")
        return cls()
    def __call__(self, text, add_special_tokens=True, verbose=True):
        return {"input_ids": [1] * add_special_tokens + [ord(letter) for letter in text]}
"""
LM_EVAL = """
import os, sys
sys.modules["lm_eval.tasks"] = sys.modules[__name__]
__version__ = "0.4.13"
class TaskManager:
    all_tasks = ["right", "gated", "leaving", "killed"]
def simple_evaluate(*, model_args, tasks, **_):
    if tasks == ["gated"]:
        raise PermissionError("while it loaded the dataset\\nno access without HF_TOKEN")
    if tasks == ["leaving"]:
        sys.exit("told to leave")
    if tasks == ["killed"]:
        os.kill(os.getpid(), 9)
    token = len(os.environ["HF_TOKEN"])
    return {"results": {tasks[0]: {"acc,none": token, "acc_stderr,none": 0.5, "alias": "x"}}}
"""
GGUF = """
import json, pathlib
class GgufConfig:
    def __init__(self, dequantize): ...
class AutoTokenizer:
    @classmethod
    def from_pretrained(cls, folder, gguf_file, **_):
        if "bad" in gguf_file:
            raise OSError("not a GGUF file")
        return cls()
    def save_pretrained(self, target):
        target.mkdir(exist_ok=True)
        (target / f"{type(self).__name__}.json").write_text("{}")
class AutoModelForCausalLM(AutoTokenizer): ...
"""
CORPUS = Corpus(parts=("abcdefghijklmnop",), description="letters")


def test_a_corpus_is_cut_with_the_models_own_tokenizer(tmp_path: Path) -> None:
    python = stand_in_python(tmp_path / "env", transformers=TRANSFORMERS)
    material = make_material(CORPUS, Quality(windows=2, window_tokens=8, answer_tokens=0), tmp_path, python)
    assert material.windows == ((1, *b"abcdefg"), (1, *b"hijklmn"))
    assert material.end_tokens == (1, 2)


def test_a_tokenizer_that_cannot_be_used_is_named_with_the_cause(tmp_path: Path) -> None:
    python = stand_in_python(tmp_path / "env", transformers=TRANSFORMERS)
    with pytest.raises(QualityError, match=r"broken failed on .*: ValueError: no tokenizer.json$"):
        make_material(CORPUS, Quality(windows=2, window_tokens=8), tmp_path / "broken", python)


@pytest.fixture
def outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskOutcome:
    monkeypatch.setenv("HF_TOKEN", "seven77")
    python = stand_in_python(tmp_path / "env", lm_eval=LM_EVAL)
    endpoint = Endpoint("http://127.0.0.1:1", "m", api_key="secret")
    quality = Quality(tasks=("gated", "leaving", "killed", "right", "job.json"))
    tools = TaskTools(python, tmp_path, tmp_path, 64)
    return run_tasks(endpoint, Scoring.PROMPT_LOGPROBS, quality, tools, lambda _: None)


def test_a_task_has_results_and_the_version_of_lm_eval(outcome: TaskOutcome) -> None:
    """And it has the hub's token, since some datasets are had in no other way."""
    (result,) = outcome.results
    assert (result.task, result.metric, result.value, result.standard_error) == ("right", "acc,none", 7, 0.5)
    assert outcome.versions == (("lm-eval", "0.4.13"),)


def test_tasks_that_fail_say_why_and_leave_the_others_alone(outcome: TaskOutcome) -> None:
    assert {failure.task: failure.cause for failure in outcome.failures} == {
        "gated": "PermissionError: no access without HF_TOKEN",
        "leaving": "SystemExit: told to leave",
        "killed": "it was killed by signal 9",
        "job.json": "ValueError: lm-eval has no task job.json",  # though a file of this name lies where it runs
    }


def test_a_gguf_file_becomes_a_checkpoint(tmp_path: Path) -> None:
    python = stand_in_python(tmp_path / "env", transformers=GGUF, torch="bfloat16 = 'bf16'\n")
    fetch._convert(tmp_path / "model.gguf", tmp_path / "checkpoint", python)
    written = {path.name: json.loads(path.read_text()) for path in (tmp_path / "checkpoint").iterdir()}
    assert written == {"AutoModelForCausalLM.json": {}, "AutoTokenizer.json": {}}
    with pytest.raises(ModelError, match=r"^Could not convert bad.gguf: OSError: not a GGUF file$"):
        fetch._convert(tmp_path / "bad.gguf", tmp_path / "checkpoint", python)

"""Workers of quality and models in another Python, with stand-ins for the packages that they import there."""

import json
from pathlib import Path

import pytest

from bitbench.models import catalog
from bitbench.ports import Endpoint
from bitbench.quality.material import Corpus, make_material
from bitbench.quality.tasks import TaskOutcome, TaskTools, run_tasks
from bitbench.study.quality import Quality, Scoring
from bitbench.util.errors import ModelError, QualityError
from tests.support.stand_in_environment import stand_in_python

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
for part in ("tasks", "api", "api.registry"):
    sys.modules[f"lm_eval.{part}"] = sys.modules[__name__]
__version__ = "0.4.13"
class TaskManager:
    all_tasks = ["right", "gated", "leaving", "killed", "chatted"]
    def load(self, names):
        return {"tasks": {"chatted": type("Task", (), {"OUTPUT_TYPE": "generate_until"})}}
class Client:
    def __init__(self, **given):
        self.given = given
    def parse_generations(self, outputs):
        return [choice["text"] for choice in outputs["choices"]]
def get_model(name):
    return type(name, (Client,), {})
def simple_evaluate(*, model, tasks, apply_chat_template, **_):
    if tasks == ["gated"]:
        raise PermissionError("while it loaded the dataset\\nno access without HF_TOKEN")
    if tasks == ["leaving"]:
        sys.exit("told to leave")
    if tasks == ["killed"]:
        os.kill(os.getpid(), 9)
    token = len(os.environ["HF_TOKEN"])
    if tasks == ["chatted"]:
        given, kind = model.given, type(model).__mro__[1].__name__
        assert given["base_url"].endswith("/v1/chat/completions") and apply_chat_template, given
        assert (kind, given["think_end_token"], given["num_concurrent"]) == ("local-chat-completions", "</think>", 4)
    choices = [{"text": "so lon", "finish_reason": "length"}, {"text": "4", "finish_reason": "stop"}]
    texts = model.parse_generations(outputs={"choices": choices})
    samples = [
        {"doc_id": number, "prompt_hash": "0123456789", "filter": "none", "metrics": ["acc", "bleu"], "acc": number,
         "bleu": 0.3, "resps": [[text]]}
        for number, text in enumerate(texts)
    ]
    results = {tasks[0]: {"acc,none": token, "acc_stderr,none": 0.5, "alias": "x"}}
    return {"results": results, "samples": {tasks[0]: samples}}
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
    material = make_material(
        CORPUS, Quality(windows=2, window_tokens=8, answer_tokens=0), tmp_path, python
    )
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
    assert (result.task, result.metric, result.value, result.standard_error) == (
        "right",
        "acc,none",
        7,
        0.5,
    )
    assert outcome.versions == (("lm-eval", "0.4.13"),)


def test_samples_are_kept_with_what_was_cut_and_a_chat_goes_to_its_own_endpoint(
    tmp_path: Path,
) -> None:
    python = stand_in_python(
        tmp_path / "env", lm_eval=LM_EVAL.replace('os.environ["HF_TOKEN"]', '""')
    )
    asked = Quality.model_validate(
        {"tasks": [{"name": "chatted", "chat": True, "think": "strip", "concurrency": 4}]}
    )
    tools = TaskTools(python, tmp_path, tmp_path, 64)
    endpoint = Endpoint("http://127.0.0.1:1", "m", api_key="secret")
    found = run_tasks(endpoint, Scoring.NEXT_TOKEN, asked, tools, lambda _: None)
    assert found.failures == ()
    assert [
        (one.metric, one.question, one.is_right, one.is_cut, one.text) for one in found.answers
    ] == [
        ("acc,none", "0 (01234567)", False, True, "so lon"),
        ("acc,none", "1 (01234567)", True, False, "4"),
    ]


def test_tasks_that_fail_say_why_and_leave_the_others_alone(outcome: TaskOutcome) -> None:
    assert (
        {failure.task: failure.cause for failure in outcome.failures}
        == {
            "gated": "PermissionError: no access without HF_TOKEN",
            "leaving": "SystemExit: told to leave",
            "killed": "it was killed by signal 9",
            "job.json": "ValueError: lm-eval has no task job.json",  # though a file of this name lies where it runs
        }
    )


def test_a_gguf_file_becomes_a_checkpoint(tmp_path: Path) -> None:
    python = stand_in_python(tmp_path / "env", transformers=GGUF, torch="bfloat16 = 'bf16'\n")
    catalog._convert_gguf(tmp_path / "model.gguf", tmp_path / "checkpoint", python)
    written = {
        path.name: json.loads(path.read_text()) for path in (tmp_path / "checkpoint").iterdir()
    }
    assert written == {"AutoModelForCausalLM.json": {}, "AutoTokenizer.json": {}}
    with pytest.raises(ModelError, match=r"^Could not convert bad.gguf: OSError: not a GGUF file$"):
        catalog._convert_gguf(tmp_path / "bad.gguf", tmp_path / "checkpoint", python)

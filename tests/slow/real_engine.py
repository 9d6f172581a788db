"""What tests of one real engine share: its environment, token ids to ask about, and what transformers says of them."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from bitbench.engines.environments import environment_python
from bitbench.machine.workplace import get_default_home
from bitbench.ports import Instance
from bitbench.quality.measure import Asker
from bitbench.records.trial import InstanceFacts
from bitbench.util.errors import EngineEnvironmentError

MODEL = "smollm2-135m"
TOP = 8
PROMPT = 32  # tokens of a window that are answered
PLAIN = """
import json, sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
window, prompt, length = json.loads(sys.argv[2])
with torch.inference_mode():
    ids = torch.tensor([window])
    known = torch.log_softmax(model(ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])
    said = model.generate(torch.tensor([prompt]), max_new_tokens=length, do_sample=False)[0, len(prompt):]
print(json.dumps([known[:, 0].tolist(), said.tolist()]))
"""


def python_or_skip(engine: str, why: str) -> Path:
    """Of its environment; `why` CI does without it."""
    try:
        return environment_python(engine, get_default_home())
    except EngineEnvironmentError as error:
        pytest.skip(f"{why}: {error}")


def window(length: int) -> list[int]:
    """Token ids of the model's own vocabulary, plain text all of them."""
    return np.random.default_rng(16).integers(300, 40_000, length).tolist()


def said_by_transformers(ids: list[int], answer_tokens: int) -> tuple[list[float], list[int]]:
    """In float32: the log-probability of each token but the first, and the greedy answer to the first PROMPT tokens."""
    home = get_default_home()
    done = subprocess.run(
        [environment_python("transformers", home), "-I", "-c", PLAIN, home / "models" / MODEL,
         json.dumps([ids, ids[:PROMPT], answer_tokens])],
        check=True, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    plain, said = json.loads(done.stdout)
    return plain, said


def differences(
    asker: Asker, ids: list[int], plain: list[float]
) -> "np.typing.NDArray[np.float64]":
    """Of each token's log-probability from the plain one, in nats."""
    found = [place[token] for place, token in zip(asker.score(ids, TOP), ids[1:], strict=True)]
    return np.abs(np.array(found) - np.array(plain))


def assert_facts_of_float32(facts: InstanceFacts) -> None:
    assert facts.engine_version
    assert facts.prefix_caching is False
    assert (
        facts.kv_bytes_per_token == 2 * 30 * 3 * 64 * 4
    )  # keys and values, 30 layers, 3 heads of 64, 4 bytes


def assert_goes_on_after_a_rest(instance: Instance, asker: Asker) -> None:
    instance.freeze()
    instance.thaw()
    assert len(asker.answer(window(8), 4, ())[0]) == 4

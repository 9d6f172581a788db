"""llama.cpp with files that its own tools made from the demo model: GGUF recipes in a study, and what the server does.

Needs the environments llamacpp and transformers, and the model smollm2-135m.
"""

import http.client
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from bitbench.engines.environments import environment_python
from bitbench.engines.llamacpp import LlamaCppEngine
from bitbench.engines.server import ServerInstance
from bitbench.loadgen.verdict import load_verdict
from bitbench.loadgen.workers import LoadWorkers
from bitbench.machine.workplace import get_default_home
from bitbench.models.folder import read_word_token_ids
from bitbench.planning.variants import VariantStore
from bitbench.ports import Endpoint, Launch, Load, LoadJob, Vocabulary
from bitbench.quantize import variants
from bitbench.records.folder import StudyFolder
from bitbench.records.trial import Outcome
from bitbench.reports.write import StudyReport
from bitbench.study.study import Argument, EngineSetup
from bitbench.study.variant import Variant
from bitbench.study.workload import Arrival, Workload
from tests.e2e.test_quality import AGREES
from tests.slow.test_quality_llamacpp import plain_logprobs

pytestmark = pytest.mark.timeout(1800)  # seconds for one test, with what its fixtures run

START_TIMEOUT_S = 120.0
# Two threads wait for each other in a loop: where other work takes a core, a token takes seconds.
ONE_THREAD: dict[str, Argument] = {"threads": 1}
# In layers. Exact by construction where every tensor has the recipe's type (a 2-byte scale for each 32 weights); the
# model's 576 columns do not fit the k-quants, and llama.cpp stores most tensors in a larger type.
BITS_PER_WEIGHT = {
    "bf16": (16, 16),
    "q8_0": (8.5, 8.5),
    "q4_0": (4.5, 4.5),
    "q4_k_m": (5, 7),
    "q5_k_m": (5.5, 7.5),
    "q6_k": (7, 8.5),
}
# The first word of the answer is nearly a tie: "The" 0.16, "L" 0.14. With activations in 8 bits the rounding of kernels
# decides it, so only unquantized weights are held to it.
ANSWERS_LIKE_BF16 = ("bf16",)
STUDY = """
name: gguf
models: [smollm2-135m]
recipes: [bf16, gguf-bf16, gguf-q8_0, gguf-q4_0]
engines: [{engine: llamacpp, args: {threads: 1}}]
workloads:
  - {name: one, concurrency: 1, input_tokens: 64, output_tokens: 32}
  - {name: eight, concurrency: 8, input_tokens: 64, output_tokens: 32}
measure: {starts: 1, trials: 2}
baseline: smollm2-135m/gguf-bf16 @ llamacpp
"""
QUALITY_STUDY = """
name: gguf-quality
models: [smollm2-135m]
recipes: [gguf-bf16]
engines: [{engine: llamacpp, args: {threads: 1}}]
quality: {windows: 16, window_tokens: 256, answer_tokens: 0}
"""


def bitbench(*arguments: str, cwd: Path | None = None) -> None:
    subprocess.run(
        [sys.executable, "-m", "bitbench", *arguments], cwd=cwd, check=True, timeout=1500
    )


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    place = tmp_path_factory.mktemp("gguf")
    (place / "study.yaml").write_text(STUDY)
    bitbench("run", "study.yaml", "--into", "out", cwd=place)
    return StudyFolder.existing(place / "out")


def test_a_study_runs_gguf_recipes_to_the_end(study: StudyFolder) -> None:
    trials = [trial for trial in study.trials() if trial.kind == "measured"]
    ran = {
        (trial.point.config.variant, trial.point.workload)
        for trial in trials
        if trial.outcome is Outcome.OK
    }
    assert ran == {
        (f"smollm2-135m/gguf-{name}", workload)
        for name in ("bf16", "q8_0", "q4_0")
        for workload in ("one", "eight")
    }
    report = (study.report / "report.md").read_text(encoding="utf-8")
    assert "add the recipe gguf-bf16" in report  # the checkpoint as it is, refused


def test_the_types_that_were_really_run_are_recorded(study: StudyFolder) -> None:
    kernels = {instance.config.variant: instance.facts.kernels for instance in study.instances()}
    assert kernels["smollm2-135m/gguf-bf16"][0] == "weights BF16: 61 tensors f32, 211 tensors bf16"
    assert "tensors q8_0" in kernels["smollm2-135m/gguf-q8_0"][0]
    assert "tensors q4_0" in kernels["smollm2-135m/gguf-q4_0"][0]


class Served:
    def __init__(self, instance: ServerInstance, endpoint: Endpoint, variant: Variant) -> None:
        self.instance = instance
        self.endpoint = endpoint
        self.variant = variant

    def ask(self, path: str, body: Mapping[str, object]) -> Any:
        parts = urlsplit(self.endpoint.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        headers = {
            "Authorization": f"Bearer {self.endpoint.api_key}",
            "Content-Type": "application/json",
        }
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        assert response.status == http.HTTPStatus.OK
        return json.loads(response.read())

    def complete(self, prompt: list[int], tokens: int, **more: object) -> Any:
        body = {
            "model": self.endpoint.model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
        }
        return self.ask("/v1/completions", {**body, **self.endpoint.extra_body, **more})


@pytest.fixture(scope="module", params=BITS_PER_WEIGHT)
def variant(request: pytest.FixtureRequest) -> Variant:
    bitbench("quantize", "smollm2-135m", "--recipe", f"gguf-{request.param}")
    return VariantStore(get_default_home(), Path()).variant("smollm2-135m", f"gguf-{request.param}")


@pytest.fixture(scope="module")
def served(variant: Variant, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    launch = Launch(
        setup=EngineSetup(name="llamacpp", engine="llamacpp", args=ONE_THREAD),
        variant=variant,
        python=_environment(),
        log_file=tmp_path_factory.mktemp("logs") / "llamacpp.log",
        loads=(Load(3, 192),),
        seed=0,
    )
    instance = LlamaCppEngine().start(launch)
    assert isinstance(instance, ServerInstance)
    try:
        yield Served(instance, instance.wait_ready(START_TIMEOUT_S), variant)
    finally:
        pid = instance.pid
        instance.stop()
        assert not is_running(pid)


def is_running(pid: int) -> bool:
    """What has ended may still have a number until the system's first process takes it away."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _environment() -> Path | None:
    environment = LlamaCppEngine().environment
    return environment_python(environment, get_default_home()) if environment else None


def test_streams_have_exact_lengths_and_usage(served: Served) -> None:
    facts = served.variant.facts
    assert facts.vocabulary_size
    words = read_word_token_ids(
        VariantStore(get_default_home(), Path()).model_folder(served.variant.model)
    )
    assert words
    workload = Workload(
        name="streams",
        concurrency=3,
        input_tokens=128,
        output_tokens=64,
        arrival=Arrival.CLOSED_LOOP,
        requests=6,
    )
    with LoadWorkers() as load:
        result = load.run(
            LoadJob(
                endpoint=served.endpoint,
                workload=workload,
                vocabulary=Vocabulary(facts.vocabulary_size, facts.special_token_ids, words),
                seed=(1,),
                request_timeout_s=60.0,
                stall_timeout_s=30.0,
            )
        )
    rows = result.requests.to_pylist()
    assert [(row["input_tokens"], row["output_tokens"]) for row in rows] == [(128, 64)] * 6
    assert all(
        32 < len(row["chunk_s"]) <= 64 for row in rows
    )  # a token that is part of a character has no chunk
    failure = load_verdict(result.sums, workload, result.health)
    assert failure is None or failure.outcome == "client_bound"  # on a busy machine


def test_a_prompt_that_was_seen_is_computed_again(served: Served) -> None:
    prompt = list(range(1000, 1100))
    answers = [served.complete(prompt, 8) for _ in range(2)]
    assert [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers] == [
        0,
        0,
    ]
    assert answers[0]["choices"][0]["text"] == answers[1]["choices"][0]["text"]


def test_it_knows_the_capital_of_france(served: Served) -> None:
    question = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
    prompt = served.ask("/apply-template", question)["prompt"]
    tokens = served.ask("/tokenize", {"content": prompt, "parse_special": True})["tokens"]
    answer = served.complete(tokens, 16, ignore_eos=False)
    assert answer["usage"]["prompt_tokens"] == len(tokens)  # nothing is put before token ids
    if served.variant.recipe.removeprefix("gguf-") in ANSWERS_LIKE_BF16:
        assert "Paris" in answer["choices"][0]["text"]


def test_log_probabilities(served: Served) -> None:
    answer = served.complete(list(range(2000, 2020)), 4, logprobs=5)
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == 4
    for token in content:
        top = [choice["logprob"] for choice in token["top_logprobs"]]
        assert len(top) == 5
        assert top == sorted(top, reverse=True)
        assert token["logprob"] == top[0]  # greedy


def test_it_says_what_it_is(served: Served) -> None:
    facts = served.instance.facts()
    assert facts.engine_version
    assert facts.prefix_caching is False
    assert facts.kv_cache_tokens == 3 * 256
    # keys and values, 30 layers, 3 heads of 64, 2 bytes
    assert facts.kv_cache_bytes == pytest.approx(3 * 256 * 2 * 30 * 3 * 64 * 2, rel=0.01)
    assert facts.kv_bytes_per_token == pytest.approx(2 * 30 * 3 * 64 * 2, rel=0.01)
    assert facts.weight_bytes_loaded is not None
    assert served.variant.weight_bytes is not None
    # The mapped file counts whole, also where tensors were packed anew beside it.
    assert 0.9 < facts.weight_bytes_loaded / served.variant.weight_bytes < 2.1
    assert any(kernel.startswith("CPU features") for kernel in facts.kernels)
    assert any("threads" in note for note in facts.notes)
    assert served.endpoint.api_key not in " ".join(facts.command)


def test_perplexity_is_that_of_a_plain_computation(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(QUALITY_STUDY)
    bitbench("run", "study.yaml", "--into", "out", cwd=tmp_path)
    folder = StudyFolder.existing(tmp_path / "out")
    (found,) = StudyReport(folder, get_default_home()).summary.quality
    assert found.tokens == 16 * 255
    assert found.estimates["perplexity"].value == pytest.approx(
        math.exp(-plain_logprobs(folder).mean()), rel=AGREES
    )


def test_the_manifest_says_what_is_stored(variant: Variant) -> None:
    name = variant.recipe.removeprefix("gguf-")
    manifest = variants.get_variant(f"smollm2-135m--gguf-{name}--", get_default_home()).manifest
    bits = manifest.bits_per_weight.linear_layers
    least, most = BITS_PER_WEIGHT[name]
    assert bits is not None
    assert least <= bits <= most
    assert bool(manifest.work.stored_otherwise) == ("_k" in name)

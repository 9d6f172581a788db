"""Real SGLang on the CPU: the same numbers as transformers, what it listens on, and what it refuses.

Needs: bitbench env create sglang, transformers; bitbench model get smollm2-135m. A start takes a minute on two cores.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bitbench.engines.sglang import SglangEngine
from bitbench.machine.workplace import get_default_home
from bitbench.planning.variants import VariantStore
from bitbench.ports import Endpoint, Instance, InstanceFailed, Launch, Load
from bitbench.quality.logprobs import AskingFailed, InstanceConnection
from bitbench.quality.measure import Asker, make_asker
from bitbench.records.trial import Outcome
from bitbench.study.quality import Scoring
from bitbench.study.study import EngineSetup
from bitbench.study.variant import Variant
from tests.slow.real_engine import (
    MODEL,
    PROMPT,
    assert_facts_of_float32,
    assert_goes_on_after_a_rest,
    differences,
    python_or_skip,
    said_by_transformers,
    window,
)

pytestmark = pytest.mark.timeout(900)  # seconds for one test, with what its fixtures run

START_S = 600.0
WINDOW, ANSWER = 192, 16
# Two threads wait for each other in a loop: where other work takes a core, a token takes ten times as long.
ENV = {"OMP_NUM_THREADS": "1"}
WITHIN = 1e-4  # nats; 2.1e-5 was measured over 699 tokens


@pytest.fixture(scope="module")
def python() -> Path:
    return python_or_skip("sglang", "SGLang and torch are 2 GB, more than CI should install")


def start(python: Path, variant: Variant, log_file: Path, **args: str) -> Instance:
    setup = EngineSetup(name="sglang", engine="sglang", args=dict(args), env=dict(ENV))
    return SglangEngine().start(
        Launch(setup, variant, python, log_file, loads=(Load(2, WINDOW + ANSWER + 1),), seed=0)
    )


@pytest.fixture(scope="module")
def log_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sglang") / "sglang.log"


@pytest.fixture(scope="module")
def instance(python: Path, log_file: Path) -> Iterator[Instance]:
    variant = VariantStore(get_default_home(), Path()).variant(MODEL, "bf16")
    running = start(python, variant, log_file, dtype="float32")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def endpoint(instance: Instance) -> Endpoint:
    return instance.wait_ready(START_S)


@pytest.fixture
def asker(endpoint: Endpoint) -> Iterator[Asker]:
    with InstanceConnection(endpoint, 300.0) as connection:
        yield make_asker(Scoring.INPUT_LOGPROBS, connection)


def test_numbers_and_answers_are_those_of_transformers(asker: Asker) -> None:
    ids = window(WINDOW)
    plain, said = said_by_transformers(ids, ANSWER)
    assert differences(asker, ids, plain).max() < WITHIN
    assert asker.answer(ids[:PROMPT], ANSWER, ())[0] == said


def test_it_says_what_computes(instance: Instance, endpoint: Endpoint) -> None:
    del endpoint  # it is ready
    facts = instance.facts()
    assert_facts_of_float32(facts)
    assert facts.kv_cache_tokens == 2 * 256
    assert any("dense float32" in kernel for kernel in facts.kernels)


def test_it_listens_on_loopback_alone_and_its_log_holds_no_key(
    instance: Instance, endpoint: Endpoint, log_file: Path
) -> None:
    assert instance.pid is not None
    root = psutil.Process(instance.pid)
    listening = [
        connection.laddr.ip
        for process in (root, *root.children(recursive=True))
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert {"127.0.0.1"} == set(listening)
    assert endpoint.api_key not in log_file.read_text(encoding="utf-8")
    with InstanceConnection(Endpoint(endpoint.url, endpoint.model, "another"), 30.0) as connection:
        with pytest.raises(AskingFailed) as refused:
            connection.ask("/v1/completions", prompt=[1], max_tokens=1)
        assert refused.value.status == 401


def test_an_instance_that_rested_goes_on(instance: Instance, asker: Asker) -> None:
    assert_goes_on_after_a_rest(instance, asker)


def test_a_quantized_checkpoint_is_unsupported_in_its_own_words(
    python: Path, tmp_path: Path
) -> None:
    """Whatever its weights are: SGLang asks for a GPU when it reads the configuration."""
    home = get_default_home()
    model = tmp_path / "w8a8"
    model.mkdir()
    for file in (home / "models" / MODEL).iterdir():
        (model / file.name).symlink_to(file)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").unlink()
    numbers = {
        "num_bits": 8,
        "type": "int",
        "symmetric": True,
        "strategy": "channel",
        "dynamic": False,
    }
    activations = {**numbers, "strategy": "token", "dynamic": True}
    group = {
        "targets": ["Linear"],
        "weights": numbers,
        "input_activations": activations,
        "format": "int-quantized",
    }
    stored = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": group},
    }
    (model / "config.json").write_text(
        json.dumps(config | {"quantization_config": stored | {"ignore": ["lm_head"]}})
    )
    instance = start(
        python, Variant(name="m/w8a8", model="m", recipe="w8a8", path=model), tmp_path / "log"
    )
    try:
        with pytest.raises(InstanceFailed) as failed:
            instance.wait_ready(START_S)
    finally:
        instance.stop()
    assert failed.value.failure.outcome is Outcome.UNSUPPORTED
    assert "Torch not compiled with CUDA enabled" in failed.value.failure.cause

"""Real OpenVINO on the CPU: a model is converted, streams are exact, and its numbers are near those of transformers.

Needs: bitbench env create openvino, transformers; bitbench model get smollm2-135m. Variants in the home are used, the
others are made, a minute for each.
"""

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bitbench.engines.openvino import OpenvinoEngine
from bitbench.machine.workplace import get_default_home
from bitbench.models import library
from bitbench.planning.variants import VariantStore, make_ordered_variant, order_variant
from bitbench.ports import Endpoint, Instance, Launch, Load
from bitbench.quality.logprobs import InstanceConnection
from bitbench.quality.measure import Asker, make_asker
from bitbench.quantize import catalog
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
from tests.unit.test_transformers_engine import events

pytestmark = pytest.mark.timeout(1200)  # seconds for one test, with what its fixtures run

START_S = 300.0
WINDOW, ANSWER = 96, 8
# Nats. In float32 with a KV cache of float32, the unquantized model is that of transformers but for rounding.
WITHIN = 1e-3
# On average over tokens at random, where a wrong token would give far more; 4 bits gave 1.3.
NEAR = {"openvino-int8": 1.0, "openvino-int4": 2.0}


@pytest.fixture(scope="module")
def python() -> Path:
    return python_or_skip("openvino", "OpenVINO and torch are 1.5 GB, more than CI should install")


def made(recipe: str) -> Variant:
    home = get_default_home()
    wanted = catalog.find_recipe(recipe)
    make_ordered_variant(order_variant(library.resolve(MODEL, home), wanted, home), home)
    return VariantStore(home, Path()).variant(MODEL, recipe)


@pytest.fixture(scope="module", params=["openvino-bf16", "openvino-int8", "openvino-int4"])
def recipe(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def instance(
    python: Path, recipe: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Instance]:
    setup = EngineSetup(
        name="openvino",
        engine="openvino",
        args={"dtype": "float32", "kv_cache_precision": "f32", "threads": 1},
    )
    log_file = tmp_path_factory.mktemp(recipe) / "openvino.log"
    launch = Launch(
        setup, made(recipe), python, log_file, loads=(Load(4, WINDOW + ANSWER),), seed=0
    )
    running = OpenvinoEngine().start(launch)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def endpoint(instance: Instance) -> Endpoint:
    return instance.wait_ready(START_S)


@pytest.fixture
def asker(endpoint: Endpoint) -> Iterator[Asker]:
    with InstanceConnection(endpoint, 300.0) as connection:
        yield make_asker(Scoring.PROMPT_LOGPROBS, connection)


def test_numbers_are_those_of_transformers_or_near_them(asker: Asker, recipe: str) -> None:
    ids = window(WINDOW)
    plain, said = said_by_transformers(ids, ANSWER)
    apart = differences(asker, ids, plain)
    if recipe == "openvino-bf16":
        assert apart.max() < WITHIN
        assert asker.answer(ids[:PROMPT], ANSWER, ())[0] == said
    else:
        assert 0 < apart.mean() < NEAR[recipe]


def test_streams_are_exact_and_computed_together(endpoint: Endpoint) -> None:
    lengths, answers = (5, 9, 13, 17), {}

    def ask(length: int) -> None:
        connection = http.client.HTTPConnection(
            "127.0.0.1", urlsplit(endpoint.url).port, timeout=300
        )
        wanted = {
            "prompt": window(length),
            "max_tokens": length,
            "stream": True,
            "model": endpoint.model,
        }
        body = {**wanted, "stream_options": {"include_usage": True}, **endpoint.extra_body}
        connection.request(
            "POST",
            "/v1/completions",
            json.dumps(body),
            {"Authorization": f"Bearer {endpoint.api_key}"},
        )
        answers[length] = events(connection.getresponse().read())

    threads = [threading.Thread(target=ask, args=(length,)) for length in lengths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for length in lengths:
        *tokens, finish, usage = answers[length]
        assert [len(event["choices"][0]["token_ids"]) for event in tokens] == [1] * length
        assert finish["choices"][0]["finish_reason"] == "length"
        assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (
            length,
            length,
        )


def test_it_says_what_computes(instance: Instance, endpoint: Endpoint) -> None:
    del endpoint  # it is ready
    facts = instance.facts()
    assert_facts_of_float32(facts)
    assert "computes in f32, KV cache f32" in facts.notes[0]


def test_an_instance_that_rested_goes_on(instance: Instance, asker: Asker) -> None:
    assert_goes_on_after_a_rest(instance, asker)

"""The compatibility table against reality: every built-in recipe is made and started on every engine that is here.

Needs: bitbench env create vllm, transformers and quantize (engines whose environment is missing are left out);
bitbench model get smollm2-135m. Variants that are in the home are used, the others are made, minutes for each.
"""

import http.client
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bitbench.engines import registry
from bitbench.engines.environments import environment_python, versions
from bitbench.machine.workplace import Workplace, get_default_home
from bitbench.models import library
from bitbench.planning.compatibility import look_up_compatibility
from bitbench.planning.variants import VariantStore
from bitbench.ports import Endpoint, InstanceFailed, Launch, Load
from bitbench.quantize import catalog, variants
from bitbench.quantize.backends import find_maker
from bitbench.records.trial import Outcome
from bitbench.study.plan import Support
from bitbench.study.recipe import Backend, Recipe
from bitbench.study.study import EngineSetup
from bitbench.study.variant import Variant
from bitbench.util.errors import EngineEnvironmentError, ModelError

pytestmark = pytest.mark.timeout(
    2400
)  # seconds for one case: an AWQ recipe is made in ten minutes on two cores

MODEL = "smollm2-135m"
TOKENS = 8
START_TIMEOUT_S = 900.0
# Compiling would take minutes and changes no kernel of a linear layer.
ARGUMENTS = {"vllm": {"enforce-eager": True}}
ANSWER_TIMEOUT_S = 900.0  # vLLM computes 8-bit floats on most CPUs one number after the other
# With the first words of the answer: whether this model begins with "The" or "L'" is nearly a tie in bf16 already.
QUESTION = "What is the capital of France?\nThe capital of France is"
TOKENIZE = """
import json, sys
from transformers import AutoTokenizer
print(json.dumps(AutoTokenizer.from_pretrained(sys.argv[1])(sys.argv[2])["input_ids"]))
"""


@dataclass(frozen=True)
class Reality:
    """What came of starting an engine with a variant and asking it once."""

    outcome: Outcome
    cause: str = ""
    answer: str = ""
    usage: tuple[int, int] = (0, 0)  # tokens in and out, as the engine counted them
    kernels: tuple[str, ...] = ()
    loaded_bytes: int | None = None


def cases() -> Iterator[tuple[str, str]]:
    """Recipe and engine, without those that an engine makes itself while it loads: the others never see them."""
    home = get_default_home()
    for name, engine in registry.engines().items():
        if not engine.needs_model:
            continue
        try:
            if engine.environment is not None:
                environment_python(engine.environment, home)
        except EngineEnvironmentError:
            continue
        for recipe in catalog.list_built_in_recipes():
            if (recipe.at_load is None or recipe.at_load.engine == name) and not is_for_gpus(
                recipe
            ):
                yield recipe.name, name


def is_for_gpus(recipe: Recipe) -> bool:
    """Those that say of themselves that they are untested: a processor takes hours to make or to run them."""
    return recipe.description.endswith("untested)")


@pytest.fixture(scope="module")
def question() -> list[int]:
    home = get_default_home()
    model = library.resolve(MODEL, home)
    command = [environment_python("transformers", home), "-I", "-c", TOKENIZE, model.path, QUESTION]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    ids: list[int] = json.loads(done.stdout)
    return ids


@pytest.mark.parametrize(("recipe_name", "engine_name"), list(cases()))
def test_the_table_says_what_the_engine_does(
    recipe_name: str, engine_name: str, question: list[int], tmp_path: Path
) -> None:
    recipe = catalog.find_recipe(recipe_name)
    row = look_up_compatibility(recipe.form, engine_name, Workplace().device, recipe.at_load)
    assert row is not None, (
        f"the table has no row for {recipe.form} on {engine_name} ({Workplace().device})"
    )
    variant = made(recipe)
    dtype = next((one.dtype for one in row.on(Workplace().level) if one.dtype), None)
    found = try_it(variant, engine_name, question, tmp_path / "engine.log", dtype)
    print(
        f"{recipe_name} on {engine_name}: {found.outcome} {found.cause}{found.answer!r} {found.kernels}"
    )
    if row.refuse:
        assert found.outcome is not Outcome.OK, (
            f"it runs with {found.kernels}; is that still not worth a try?"
        )
    elif row.verdict is Support.DOES_NOT_RUN:
        assert found.outcome is Outcome.UNSUPPORTED, found.cause
    else:
        assert found.outcome is Outcome.OK, found.cause
        assert found.usage == (len(question), TOKENS)
        if should_know_the_answer(recipe):
            assert "Paris" in found.answer
        if recipe.at_load is not None:
            assert any("Int8Tensor" in kernel for kernel in found.kernels)
            assert found.loaded_bytes is not None
            assert variant.weight_bytes is not None
            assert (
                found.loaded_bytes < 0.65 * variant.weight_bytes
            )  # 163 of 269 MB: the embedding stays as it is


def should_know_the_answer(recipe: Recipe) -> bool:
    """Eight bits are enough for that; four bits, or half of the weights, may not be."""
    if recipe.backend is Backend.GGUF:
        return "q8" in recipe.name
    return not recipe.form.endswith("/sparse") and (
        recipe.scheme is None or recipe.scheme.weight_bits == 8
    )


def made(recipe: Recipe) -> Variant:
    home = get_default_home()
    store = VariantStore(home, Path())
    variant = store.variant(MODEL, recipe.name)
    if variant.path is not None:
        return variant
    found = library.resolve(MODEL, home)
    environment = find_maker(recipe).environment
    wanted = variants.request_variant(
        variants.SourceModel(found.name, found.path, found.content_hash),
        recipe,
        versions=versions(environment, home),
    )
    variants.ensure_variant(wanted, home=home, python=environment_python(environment, home))
    return store.variant(MODEL, recipe.name)


def try_it(
    variant: Variant,
    engine_name: str,
    question: list[int],
    log_file: Path,
    dtype: str | None = None,
) -> Reality:
    engine = registry.engine(engine_name)
    launch = Launch(
        setup=EngineSetup(
            name=engine_name,
            engine=engine_name,
            args=ARGUMENTS.get(engine_name, {}),
            env={
                name: os.environ[name]
                for name in ("OMP_NUM_THREADS", "GOMP_SPINCOUNT")
                if name in os.environ
            },
        ),
        variant=variant,
        python=environment_python(engine.environment, get_default_home())
        if engine.environment
        else None,
        log_file=log_file,
        loads=(Load(1, len(question) + TOKENS),),
        seed=0,
        dtype=dtype,
    )
    try:
        instance = engine.start(launch)
    except ModelError as error:
        return Reality(Outcome.UNSUPPORTED, str(error))
    try:
        endpoint = instance.wait_ready(START_TIMEOUT_S)
        answer, usage = ask(endpoint, question)
        facts = instance.facts()
        return Reality(Outcome.OK, "", answer, usage, facts.kernels, facts.weight_bytes_loaded)
    except InstanceFailed as failed:
        return Reality(failed.failure.outcome, failed.failure.cause)
    finally:
        instance.stop()


def ask(endpoint: Endpoint, question: list[int]) -> tuple[str, tuple[int, int]]:
    """The text of the answer, and how many tokens the engine says it read and wrote."""
    body = {
        "model": endpoint.model,
        "prompt": question,
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **endpoint.extra_body,
    }
    headers = {"Authorization": f"Bearer {endpoint.api_key}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection(urlsplit(endpoint.url).netloc, timeout=ANSWER_TIMEOUT_S)
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    response = connection.getresponse()
    content = response.read().decode()
    assert response.status == http.HTTPStatus.OK, content
    lines = [
        line.removeprefix("data: ") for line in content.splitlines() if line.startswith("data: {")
    ]
    events = [json.loads(line) for line in lines]
    text = "".join(choice["text"] for event in events for choice in event["choices"])
    usage = next(event["usage"] for event in reversed(events) if event.get("usage"))
    return text, (usage["prompt_tokens"], usage["completion_tokens"])

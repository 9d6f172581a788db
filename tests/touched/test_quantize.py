"""Real quantization of the real small model: quick recipes, what the manifest says, and a kill in the middle. W8A8 by
rounding is in tests/e2e.

Needs: bitbench env create quantize, bitbench model get smollm2-135m. Variants go to a folder of the test's own.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bitbench.engines.environments import environment_python, versions
from bitbench.machine.workplace import get_default_home
from bitbench.models import library
from bitbench.quantize import catalog, variants
from bitbench.quantize.backends import QuantizeProgress
from bitbench.quantize.variants import MadeVariant, SourceModel, VariantRequest
from bitbench.study.recipe import Recipe

FEW = {"samples": 4, "tokens": 128}
LATER_BLOCKS = (
    r"re:.*layers\.([4-9]|\d\d)\."  # left alone, so that a test takes a minute and not five
)
LINEAR_LAYERS = 7 * 4
ASK = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
question = [{"role": "user", "content": "What is the capital of France?"}]
ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
answer = model.generate(**ids, max_new_tokens=12, do_sample=False)[0, ids["input_ids"].shape[1]:]
print(tokenizer.decode(answer, skip_special_tokens=True))
"""
MAKE = """
import sys
from pathlib import Path
from tests.touched.test_quantize import make, order, quick
make(order(quick(sys.argv[2])), Path(sys.argv[1]), lambda progress: print(progress.part, flush=True))
"""


def quick(name: str) -> Recipe:
    """A built-in recipe with few samples, for the first four blocks."""
    recipe = catalog.find_recipe(name)
    last = recipe.steps[-1].model_copy(update={"ignore": ("lm_head", LATER_BLOCKS)})
    calibration = recipe.calibration.model_copy(update=FEW)
    return recipe.model_copy(
        update={"steps": (*recipe.steps[:-1], last), "calibration": calibration}
    )


def order(recipe: Recipe, calibration: Path | None = None) -> VariantRequest:
    home = get_default_home()
    model = library.resolve("smollm2-135m", home)
    source = SourceModel(model.name, model.path, model.content_hash)
    return variants.request_variant(
        source, recipe, versions=versions("quantize", home), calibration=calibration, seed=1
    )


def make(wanted: VariantRequest, home: Path, on_progress: object = lambda _: None) -> MadeVariant:
    python = environment_python("quantize", get_default_home())
    return variants.ensure_variant(wanted, home=home, python=python, on_progress=on_progress)  # type: ignore[arg-type]


def answer_of(variant: MadeVariant) -> str:
    python = environment_python("quantize", get_default_home())
    done = subprocess.run(
        [python, "-I", "-c", ASK, variant.path],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.mark.parametrize(
    ("name", "layer_bits", "stored_as"),
    [
        ("w4a16-rtn", 4.25, "pack-quantized"),
        ("fp8-dynamic", 8.0, "float-quantized"),
    ],
)
def test_rounding_to_the_nearest(home: Path, name: str, layer_bits: float, stored_as: str) -> None:
    made = make(order(catalog.find_recipe(name)), home)
    assert made.manifest.bits_per_weight.linear_layers == pytest.approx(layer_bits, abs=0.06)
    config = json.loads((made.path / "config.json").read_text())["quantization_config"]
    assert config["format"] == stored_as
    assert config["ignore"] == ["lm_head"]
    assert made.manifest.calibration is None
    assert made.manifest.work.peak_memory_bytes
    assert (made.path / "tokenizer.json").exists()


def test_eight_bits_still_know_the_capital_of_france(home: Path) -> None:
    assert "Paris" in answer_of(make(order(catalog.find_recipe("w8a8-rtn")), home))


def test_gptq_tells_its_progress_for_each_layer(home: Path) -> None:
    seen: list[QuantizeProgress] = []
    made = make(order(quick("w4a16-gptq")), home, seen.append)
    work = made.manifest.work
    assert (work.samples, work.tokens) == (FEW["samples"], FEW["samples"] * FEW["tokens"])
    layers = [progress for progress in seen if progress.step == "gptq"]
    assert [progress.part for progress in layers] == list(range(len(layers)))
    assert len(layers) >= 30
    assert made.manifest.calibration is not None
    assert "Python" in made.manifest.calibration.description


def test_awq_calibrated_on_a_chat(home: Path, tmp_path: Path) -> None:
    talk = [
        {"role": "user", "content": "Name a river."},
        {"role": "assistant", "content": "The Danube, for one."},
    ]
    chat = tmp_path / "chat.jsonl"
    chat.write_text("".join(json.dumps({"messages": talk}) + "\n" for _ in range(2)))
    recipe = quick("w4a16-awq")
    steps = [recipe.steps[0].model_copy(update={"grid": 3}), recipe.steps[1]]
    made = make(order(recipe.model_copy(update={"steps": tuple(steps)}), chat), home)
    errors = made.manifest.work.layer_errors
    assert {error.method for error in errors} == {"AWQ"}
    assert all(error.before is not None and error.error <= error.before for error in errors)
    assert made.manifest.work.samples == 2
    assert made.manifest.bits_per_weight.linear_layers == pytest.approx(4 + (16 + 4) / 64, abs=0.06)


def test_killed_in_the_middle_nothing_is_half_and_nothing_is_made_twice(
    home: Path, tmp_path: Path
) -> None:
    made_before = make(order(catalog.find_recipe("w8a8-rtn")), home)
    shutil.copytree(made_before.folder, tmp_path / "variants" / made_before.folder.name)
    (finished,) = variants.list_variants(tmp_path)
    wanted = order(quick("w8a8-smooth-ptq"))
    command = [sys.executable, "-c", MAKE, str(tmp_path), "w8a8-smooth-ptq"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if int(line) >= 2:  # some layers are done
                break
        (worker,) = psutil.Process(run.pid).children(recursive=True)
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
        _, alive = psutil.wait_procs([worker], timeout=60)
        assert not alive, "the worker outlived its parent"
    leftover = tmp_path / "variants" / f".making-{wanted.folder_name}"
    assert leftover.exists(), "killed too late for this test to mean anything"
    assert variants.list_variants(tmp_path) == (finished,)
    assert variants.find_variant_on_disk(wanted, tmp_path) is None

    seen: list[QuantizeProgress] = []
    assert make(order(catalog.find_recipe("w8a8-rtn")), tmp_path, seen.append) == finished
    assert seen == [], "a finished variant was made again"
    made = make(wanted, tmp_path)
    assert not leftover.exists()
    assert {variant.folder for variant in variants.list_variants(tmp_path)} == {
        finished.folder,
        made.folder,
    }

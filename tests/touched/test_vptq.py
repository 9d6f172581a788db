"""VPTQ of two real blocks: made, interrupted and continued, read back, and run by the native kernel in transformers.

Needs: bitbench env create quantize transformers, bitbench model get smollm2-135m. Variants go to the test's own folder.
"""

import json
import subprocess
from pathlib import Path

import pytest

from bitbench.engines.environments import environment_python, versions
from bitbench.measure.workplace import default_home
from bitbench.models import library
from bitbench.quantize import catalog, variants
from bitbench.quantize.backends import QuantizeProgress
from bitbench.quantize.variants import MadeVariant, SourceModel, VariantRequest
from bitbench.study.recipe import Recipe

LATER_BLOCKS = r"re:.*layers\.([2-9]|\d\d)\."
LAYERS = 7 * 2
# Prints how far three ways to compute the same checkpoint are apart, what the server would say about its layers, and
# an answer.
COMPARE = """
import json, sys
from pathlib import Path
import torch
from transformers import AutoTokenizer
sys.path.append(sys.argv[2])
import transformers_model as worker
worker.checkpoint_layers.make_importable()
from bitbench.features.vptq import hugging_face, linear
folder = Path(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(folder)
ids = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
model = hugging_face.load_vptq_model(folder, torch.float32)
with torch.inference_mode():
    by_kernel = model(ids).logits
    kinds, loaded = worker.linear_layers(model), worker.transformers_model_bytes(model)
    linear.KERNEL_ROWS = 0
    made_dense = model(ids).logits
    linear.KERNEL_ROWS = 128
    answer = model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1]:]
    linear.vptq_linear_isa = lambda: None
    without_native = hugging_face.load_vptq_model(folder, torch.float32)
    dense = without_native(ids).logits
print(json.dumps({
    "kernel": float((by_kernel - dense).norm() / dense.norm()),
    "made_dense": float((made_dense - dense).norm() / dense.norm()),
    "kinds": kinds, "loaded": loaded,
    "kinds_without": worker.linear_layers(without_native),
    "loaded_without": worker.transformers_model_bytes(without_native),
    "answer": tokenizer.decode(answer),
}))
"""


class Interrupted(Exception):
    pass


def order(calibrated: int = 4) -> VariantRequest:
    home = default_home()
    recipe = catalog.find_recipe("vptq-4096-256")
    brief = {"ignore": ("lm_head", LATER_BLOCKS), "main": 1024, "iterations": 2, "rounds": 1}
    few = recipe.calibration.model_copy(update={"samples": calibrated, "tokens": 128})
    small: Recipe = recipe.model_copy(update={"options": {**recipe.options, **brief}, "calibration": few})
    model = library.resolve("smollm2-135m", home)
    source = SourceModel(model.name, model.path, model.content_hash)
    return variants.request_variant(source, small, versions=versions("quantize", home), seed=1)


def make(home: Path, on_progress: object = lambda _: None) -> MadeVariant:
    python = environment_python("quantize", default_home())
    return variants.ensure_variant(order(), home=home, python=python, on_progress=on_progress)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeVariant:
    return make(tmp_path_factory.mktemp("home"))


def test_the_manifest_tells_errors_and_both_counts_of_bits(made: MadeVariant) -> None:
    facts = made.manifest
    errors = {error.layer: error.error for error in facts.work.layer_errors}
    assert len(errors) == LAYERS
    assert max(errors.values()) < 0.15
    assert facts.work.index_bits_per_weight == pytest.approx((10 + 8) / 8, rel=0.01)
    layers = facts.bits_per_weight.linear_layers
    assert layers is not None
    assert layers > facts.work.index_bits_per_weight + 16 * 8 * (1024 + 256) * 7 / 3.54e6
    config = json.loads((made.path / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "vptq"
    assert len(config["config_for_layers"]) == LAYERS


def test_work_that_was_interrupted_goes_on_and_gives_the_same(made: MadeVariant, tmp_path: Path) -> None:
    def interrupt(now: QuantizeProgress) -> None:
        if now.part >= 9:
            raise Interrupted

    with pytest.raises(Interrupted):
        make(tmp_path, interrupt)
    (kept,) = (tmp_path / "variants").glob(".kept-*")
    assert len(list(kept.glob("*.safetensors"))) >= 9
    seen: list[QuantizeProgress] = []
    again = make(tmp_path, seen.append)
    assert next(now.part for now in seen if now.parts) >= 9
    assert again.content_hash == made.content_hash
    assert not kept.exists()


def test_read_back_it_computes_the_same_with_the_kernel_and_without(made: MadeVariant) -> None:
    python = environment_python("transformers", default_home())
    workers = Path(__file__).parents[2] / "src/bitbench/engines/workers"
    done = subprocess.run(
        [python, "-I", "-c", COMPARE, made.path, workers], check=True, capture_output=True, text=True, timeout=300
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["kernel"] < 2e-3  # half precision of what is stored, 16 bits of the activations
    assert found["made_dense"] < 2e-3
    assert any(kind.startswith(f"{LAYERS} linear layers in VPTQ 1024/256, native kernel") for kind in found["kinds"])
    assert any("expanded to dense at load (no native part)" in kind for kind in found["kinds_without"])
    assert found["loaded"] < found["loaded_without"] - 2 * 3.5e6 * 3.5  # float32 against less than 4 bits
    # About what was asked; how the processor rounds while codebooks are fitted decides which word comes first.
    assert "Paris" in found["answer"] or "France" in found["answer"]

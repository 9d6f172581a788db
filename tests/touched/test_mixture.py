"""A small mixture of experts with random weights (transformers' Qwen3-MoE), quantized by the real llm-compressor.

Needs: bitbench env create quantize, bitbench model get smollm2-135m, for its tokenizer.
"""

import json
import subprocess
from pathlib import Path

import pytest

from bitbench.engines.environments import environment_python, versions
from bitbench.machine.workplace import get_default_home
from bitbench.models import library
from bitbench.quantize import catalog, variants
from bitbench.quantize.defects import find_defects
from bitbench.quantize.variants import SourceModel
from bitbench.quantize.workers import llmcompressor_worker
from bitbench.util.model_files import read_safetensors_headers

EXPERTS = 4
# The router's rows are v, -v, u and 0: the last one's logit is never the greatest, so no token reaches expert 3.
MAKE = f"""
import sys, torch
from transformers import AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM
tokenizer = AutoTokenizer.from_pretrained(sys.argv[2])
torch.manual_seed(0)
config = Qwen3MoeConfig(
    vocab_size=len(tokenizer), hidden_size=128, intermediate_size=128, moe_intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=32, num_experts={EXPERTS}, num_experts_per_tok=1,
)
model = Qwen3MoeForCausalLM(config).to(torch.bfloat16)
for layer in model.model.layers:
    rows = layer.mlp.gate.weight.data
    rows[1] = -rows[0]
    rows[3] = 0
model.save_pretrained(sys.argv[1])
tokenizer.save_pretrained(sys.argv[1])
"""
# As llm-compressor does where it is told not to send every token to every expert.
STATIC = """
import sys, torch
sys.path.insert(0, sys.argv[4])
from llmcompressor import oneshot
from llmcompressor.modeling.moe.linearize import linearize_moe
from llmcompressor.modifiers.quantization import QuantizationModifier
from transformers import AutoModelForCausalLM, AutoTokenizer
from llmcompressor_worker import watch_llmcompressor_experts
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
linearize_moe(model)
unreached = watch_llmcompressor_experts(model)
ids = torch.randint(1000, 30000, (4, 64), generator=torch.Generator().manual_seed(0))
samples = [{"input_ids": row[None], "attention_mask": torch.ones_like(row[None])} for row in ids]
recipe = QuantizationModifier(targets="Linear", scheme="FP8", ignore=["lm_head", "re:.*gate$"])
oneshot(
    model=model, processor=tokenizer, recipe=[recipe],
    dataset=torch.utils.data.DataLoader(samples, batch_size=None), num_calibration_samples=4, max_seq_length=64,
    moe_calibrate_all_experts=sys.argv[3] == "all",
)
model.save_pretrained(sys.argv[2], save_compressed=True)
print(sorted(unreached))
"""


def run(code: str, *arguments: object) -> str:
    python = environment_python("quantize", get_default_home())
    command = [str(python), "-I", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1] if done.stdout else ""


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "mixture"
    run(MAKE, folder, library.resolve("smollm2-135m", get_default_home()).path)
    return folder


def test_every_expert_is_reached_and_quantized(mixture: Path, tmp_path: Path) -> None:
    home = get_default_home()
    recipe = catalog.find_recipe("w4a16-gptq")
    few = recipe.calibration.model_copy(update={"samples": 4, "tokens": 128})
    recipe = recipe.model_copy(update={"calibration": few})
    source = SourceModel("mixture", mixture, "0" * 64)
    wanted = variants.request_variant(source, recipe, versions=versions("quantize", home))
    made = variants.ensure_variant(
        wanted, home=tmp_path, python=environment_python("quantize", home)
    )
    assert made.manifest.work.unreached == ()
    packed = [
        name
        for name in read_safetensors_headers(made.path)
        if ".experts." in name and name.endswith(".weight_packed")
    ]
    assert len(packed) == 2 * EXPERTS * 3
    assert find_defects(made.path, recipe.ignored) == []


@pytest.mark.parametrize("sent_to", ["all", "chosen"])
def test_an_expert_that_no_token_reached_is_named(
    mixture: Path, tmp_path: Path, sent_to: str
) -> None:
    worker = Path(llmcompressor_worker.__file__).parent
    unreached = json.loads(
        run(STATIC, mixture, tmp_path / "static", sent_to, worker).replace("'", '"')
    )
    told = [str(defect) for defect in find_defects(tmp_path / "static", ("lm_head", "re:.*gate$"))]
    if sent_to == "all":
        assert unreached == []
        assert told == []
    else:
        assert unreached == [f"model.layers.{layer}.mlp.experts.3" for layer in range(2)]
        assert any(line.startswith("model.layers.0.mlp.experts.3.") for line in told)
        assert all("calibration never reached expert 3" in line for line in told)

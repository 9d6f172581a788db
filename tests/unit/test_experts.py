"""The experts of a mixture, from configurations as their families write them."""

from pathlib import Path
from typing import Any

import pytest

from bitbench.models.folder import parse_expert_facts
from bitbench.planning import variants
from bitbench.quantize.checkpoint import GgufHeader
from bitbench.study.variant import ExpertFacts

QWEN3 = {
    "num_hidden_layers": 48,
    "intermediate_size": 6144,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
MIXTRAL = {
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
GLM = {
    "num_hidden_layers": 46,
    "intermediate_size": 10944,
    "n_routed_experts": 128,
    "n_shared_experts": 2,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
}


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (QWEN3, ExpertFacts(count=128, per_token=8, size=768, layers=48)),
        (
            QWEN3 | {"mlp_only_layers": [0, 7]},
            ExpertFacts(count=128, per_token=8, size=768, layers=46),
        ),
        (
            QWEN3 | {"decoder_sparse_step": 2},
            ExpertFacts(count=128, per_token=8, size=768, layers=24),
        ),
        (
            QWEN3 | {"shared_expert_intermediate_size": 5632},
            ExpertFacts(count=128, per_token=8, size=768, layers=48, shared_size=5632),
        ),
        (MIXTRAL, ExpertFacts(count=8, per_token=2, size=14336, layers=32)),
        (GLM, ExpertFacts(count=128, per_token=8, size=1408, layers=45, shared_size=2816)),
        (
            GLM | {"mlp_layer_types": ["dense", "dense", *["sparse"] * 44]},
            ExpertFacts(count=128, per_token=8, size=1408, layers=44, shared_size=2816),
        ),
        (
            MIXTRAL | {"interleave_moe_layer_step": 2},
            ExpertFacts(count=8, per_token=2, size=14336, layers=None),
        ),
        (
            MIXTRAL | {"num_hidden_layers": 2**39},
            ExpertFacts(count=8, per_token=2, size=14336, layers=None),
        ),
        (
            QWEN3 | {"moe_layer_freq": [0, 1]},
            ExpertFacts(count=128, per_token=8, size=768, layers=None),
        ),
        (
            QWEN3 | {"moe_intermediate_size": [768]},
            ExpertFacts(count=128, per_token=8, size=None, layers=48),
        ),
        ({"num_hidden_layers": 30, "intermediate_size": 1536}, None),
    ],
)
def test_experts_are_read_as_families_write_them(
    config: dict[str, Any], found: ExpertFacts | None
) -> None:
    assert parse_expert_facts(config) == found


def test_a_gguf_file_says_it_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {
        "general.architecture": "x",
        **{"x.block_count": 46, "x.leading_dense_block_count": 1, "x.feed_forward_length": 10944},
        **{"x.expert_count": 128, "x.expert_used_count": 8, "x.expert_shared_count": 2},
        "x.expert_feed_forward_length": 1408,
    }
    file = tmp_path / "Tiny-Q4_K_M.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.setattr(variants, "read_gguf_header", lambda _: GgufHeader(values, ()))
    found = variants.look_up_variant_model(str(file), tmp_path)
    assert found.facts.experts == parse_expert_facts(GLM)

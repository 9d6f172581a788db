"""Bytes and operations of a step, against numbers that can be counted by hand."""

import numpy as np
import pytest

from bitbench.models.shapes import SHAPES
from bitbench.records.roof import Bound, MachineRoof, Readings, compute_attainable
from bitbench.study.model_cost import (
    compute_decode_cost,
    compute_prefill_cost,
    count_read_bytes,
    estimate_active_bytes,
    estimate_touched_share,
    estimate_weight_bytes,
    explain_unknown_cost,
)
from bitbench.study.variant import ExpertFacts, ModelFacts

# SmolLM2-135M, as read from its folder.
SMOLLM2 = ModelFacts(
    parameters=134_515_008,
    vocabulary_size=49_152,
    hidden_size=576,
    intermediate_size=1536,
    layers=30,
    heads=9,
    kv_heads=3,
    head_size=64,
    tied_embeddings=True,
)
NORMS = (2 * 30 + 1) * 576
WEIGHTS = 2 * 134_515_008
ROOF = MachineRoof(
    measured_at="2026-11-15T09:00:00+00:00",
    cpu_model="x",
    threads=2,
    torch="2.13",
    read_bytes_per_s=Readings(values=(9e9, 10e9, 8e9)),
    flops_per_s=Readings(values=(400e9,)),
    float32_flops_per_s=Readings(values=(200e9,)),
    int8_ops_per_s=Readings(values=(800e9,)),
)


def test_products_use_every_weight_of_the_checkpoint_but_the_norms_once() -> None:
    cost = compute_decode_cost(SMOLLM2, WEIGHTS, batch=1, context=0)
    assert cost.matmul_flops == 2 * (134_515_008 - NORMS)


def test_keys_and_values_grow_with_batch_and_context_and_weights_do_not() -> None:
    one, many = (
        compute_decode_cost(SMOLLM2, WEIGHTS, batch=batch, context=999) for batch in (1, 8)
    )
    assert one.kv_bytes == 1000 * 23_040  # 2 · 30 layers · 3 heads · 64 · 2 bytes, as vLLM says too
    assert many.kv_bytes == 8 * one.kv_bytes
    assert many.weight_bytes == one.weight_bytes == WEIGHTS
    assert many.flops == 8 * one.flops
    assert one.attention_flops == 999 * 4 * 30 * 9 * 64


def test_a_prefill_computes_the_head_once_and_half_of_all_pairs() -> None:
    cost = compute_prefill_cost(SMOLLM2, WEIGHTS, batch=2, tokens=100)
    blocks, head = 134_515_008 - NORMS - 576 * 49_152, 576 * 49_152
    assert cost.matmul_flops == 2 * 2 * (100 * blocks + head)
    assert cost.attention_flops == 2 * (100 * 101 // 2) * 4 * 30 * 9 * 64
    assert cost.kv_bytes == 2 * 100 * 23_040


def test_an_input_embedding_of_its_own_is_not_read() -> None:
    untied = SMOLLM2.model_copy(update={"tied_embeddings": False})
    assert count_read_bytes(untied, WEIGHTS) == WEIGHTS - 2 * 576 * 49_152
    assert count_read_bytes(SMOLLM2, WEIGHTS) == WEIGHTS


def test_what_cannot_be_told_says_why() -> None:
    assert explain_unknown_cost(SMOLLM2) is None
    assert "of its 8 experts" in (
        explain_unknown_cost(SMOLLM2.model_copy(update={"experts": ExpertFacts(count=8)})) or ""
    )
    assert "intermediate_size" in (
        explain_unknown_cost(SMOLLM2.model_copy(update={"intermediate_size": None})) or ""
    )


def test_the_roof_is_the_best_reading_and_the_slower_of_reading_and_computing_counts() -> None:
    single = compute_attainable(
        compute_decode_cost(SMOLLM2, WEIGHTS, batch=1, context=0), ROOF, in_int8=False
    )
    assert single.bound is Bound.MEMORY
    assert single.seconds == pytest.approx(WEIGHTS / 10e9, rel=0.01)
    prefill = compute_prefill_cost(SMOLLM2, WEIGHTS, batch=8, tokens=512)
    dense, eight = (compute_attainable(prefill, ROOF, in_int8=in_int8) for in_int8 in (False, True))
    assert dense.bound is Bound.ARITHMETIC
    assert dense.seconds == pytest.approx(prefill.flops / 400e9)
    assert eight.arithmetic_s == pytest.approx(
        prefill.matmul_flops / 800e9 + prefill.attention_flops / 400e9
    )
    assert ROOF.read_bytes_per_s.spread == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("form", "share"),
    [
        ("dense", 1.0),
        ("compressed-tensors/w8a8-int", 0.51),
        ("awq/w4a16-int", 0.28),
        ("x/w4afp8-int", 0.28),
        ("gguf", None),
        ("awq", None),
    ],
)
def test_the_size_of_a_checkpoint_follows_from_its_form(form: str, share: float | None) -> None:
    facts = SHAPES["llama-3.1-70b"].facts
    found = estimate_weight_bytes(facts, form)
    assert (
        found is None
        if share is None
        else found == pytest.approx(share * 2 * (facts.parameters or 0), rel=0.03)
    )


# Three layers, two of them with four experts: each token goes to two of them and to a shared one.
MIXTURE = ModelFacts(
    vocabulary_size=10,
    hidden_size=4,
    intermediate_size=8,
    layers=3,
    heads=2,
    kv_heads=1,
    head_size=2,
    tied_embeddings=True,
    experts=ExpertFacts(count=4, per_token=2, size=3, layers=2, shared_size=5),
)
ATTENTION, DENSE, EXPERT, SHARED, ROUTER, HEAD = (
    3 * (16 + 8 + 8 + 16),
    3 * 4 * 8,
    3 * 4 * 3,
    3 * 4 * 5,
    4 * 4,
    40,
)
ALL = 2 * (ATTENTION + DENSE + 2 * (4 * EXPERT + SHARED + ROUTER) + HEAD)


@pytest.mark.parametrize(("batch", "experts"), [(1, 2.0), (2, 3.0), (3, 3.5)])
def test_a_step_of_a_mixture_reads_the_experts_that_its_tokens_touch(
    batch: int, experts: float
) -> None:
    cost = compute_decode_cost(MIXTURE, ALL, batch=batch, context=0)
    assert cost.touched_experts == experts / 4
    assert cost.weight_bytes == ALL - 2 * 2 * (4 - experts) * EXPERT
    assert cost.matmul_flops == 2 * batch * (
        ATTENTION + DENSE + 2 * (2 * EXPERT + SHARED + ROUTER) + HEAD
    )


def test_a_prefill_touches_experts_with_every_token_of_its_prompts() -> None:
    cost = compute_prefill_cost(MIXTURE, ALL, batch=1, tokens=3)
    assert cost.touched_experts == 3.5 / 4
    assert compute_prefill_cost(MIXTURE, ALL, batch=8, tokens=512).weight_bytes == ALL


def test_the_share_of_experts_touched_is_that_of_simulated_uniform_routing() -> None:
    rng = np.random.default_rng(0)
    for experts, per_token, tokens in ((8, 2, 1), (8, 2, 4), (128, 8, 8), (128, 8, 64)):
        chosen = rng.random((400, tokens, experts)).argsort(axis=2)[:, :, :per_token]
        shares = [len(np.unique(step)) / experts for step in chosen]
        assert np.mean(shares) == pytest.approx(
            estimate_touched_share(experts, per_token, tokens), abs=0.01
        )


def test_a_token_of_qwen3_30b_a3b_reads_what_its_name_says() -> None:
    facts = SHAPES["qwen3-30b-a3b"].facts
    active = estimate_active_bytes(facts, 2 * (facts.parameters or 0))
    embedding = 2_048 * 151_936
    assert active is not None
    assert active / 2 + embedding == pytest.approx(
        3.3e9, rel=0.02
    )  # as its card says, embeddings included
    assert estimate_active_bytes(SMOLLM2, WEIGHTS) is None

"""Bytes and operations of a step, against numbers that can be counted by hand."""

import pytest

from bitbench.models.shapes import SHAPES
from bitbench.records.roof import Bound, MachineRoof, Readings, attainable
from bitbench.study.model_cost import (
    decode_cost,
    expected_weight_bytes,
    prefill_cost,
    read_weight_bytes,
    why_not,
)
from bitbench.study.variant import ModelFacts

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
    cost = decode_cost(SMOLLM2, WEIGHTS, batch=1, context=0)
    assert cost.matmul_flops == 2 * (134_515_008 - NORMS)


def test_keys_and_values_grow_with_batch_and_context_and_weights_do_not() -> None:
    one, many = (decode_cost(SMOLLM2, WEIGHTS, batch=batch, context=999) for batch in (1, 8))
    assert one.kv_bytes == 1000 * 23_040  # 2 · 30 layers · 3 heads · 64 · 2 bytes, as vLLM says too
    assert many.kv_bytes == 8 * one.kv_bytes
    assert many.weight_bytes == one.weight_bytes == WEIGHTS
    assert many.flops == 8 * one.flops
    assert one.attention_flops == 999 * 4 * 30 * 9 * 64


def test_a_prefill_computes_the_head_once_and_half_of_all_pairs() -> None:
    cost = prefill_cost(SMOLLM2, WEIGHTS, batch=2, tokens=100)
    blocks, head = 134_515_008 - NORMS - 576 * 49_152, 576 * 49_152
    assert cost.matmul_flops == 2 * 2 * (100 * blocks + head)
    assert cost.attention_flops == 2 * (100 * 101 // 2) * 4 * 30 * 9 * 64
    assert cost.kv_bytes == 2 * 100 * 23_040


def test_an_input_embedding_of_its_own_is_not_read() -> None:
    untied = SMOLLM2.model_copy(update={"tied_embeddings": False})
    assert read_weight_bytes(untied, WEIGHTS) == WEIGHTS - 2 * 576 * 49_152
    assert read_weight_bytes(SMOLLM2, WEIGHTS) == WEIGHTS


def test_what_cannot_be_told_says_why() -> None:
    assert why_not(SMOLLM2) is None
    assert "mixture of 8 experts" in (why_not(SMOLLM2.model_copy(update={"experts": 8})) or "")
    assert "intermediate_size" in (why_not(SMOLLM2.model_copy(update={"intermediate_size": None})) or "")


def test_the_roof_is_the_best_reading_and_the_slower_of_reading_and_computing_counts() -> None:
    single = attainable(decode_cost(SMOLLM2, WEIGHTS, batch=1, context=0), ROOF, in_int8=False)
    assert single.bound is Bound.MEMORY
    assert single.seconds == pytest.approx(WEIGHTS / 10e9, rel=0.01)
    prefill = prefill_cost(SMOLLM2, WEIGHTS, batch=8, tokens=512)
    dense, eight = (attainable(prefill, ROOF, in_int8=in_int8) for in_int8 in (False, True))
    assert dense.bound is Bound.ARITHMETIC
    assert dense.seconds == pytest.approx(prefill.flops / 400e9)
    assert eight.arithmetic_s == pytest.approx(prefill.matmul_flops / 800e9 + prefill.attention_flops / 400e9)
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
    found = expected_weight_bytes(facts, form)
    assert found is None if share is None else found == pytest.approx(share * 2 * (facts.parameters or 0), rel=0.03)

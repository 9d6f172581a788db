"""About how long it takes to create a variant, before any was created."""

from bitbench.quantize.backends import maker_of
from bitbench.study.recipe import Backend, Recipe

# Two cores of a server CPU, SmolLM2-135M, calibration by default: good to a factor of three, no more.
START_S = 20.0  # the environment's imports, reading the model, writing the variant
S_PER_MILLION_PARAMETERS = {
    "quantize": 0.02,
    "smoothquant": 0.55,
    "sparsegpt": 0.95,
    "gptq": 1.0,
    "awq": 1.8,
    "autoround": 4.0,
    "spinquant": 0.6,
}


def guess_make_s(recipe: Recipe, parameters: int) -> float:
    """0 where nothing is made: the model as it is, or compressed by an engine while it loads."""
    if recipe.backend in (Backend.NONE, Backend.ENGINE):
        return 0.0
    per_million = maker_of(recipe).s_per_million_parameters
    if per_million is None:
        per_million = sum(S_PER_MILLION_PARAMETERS[step.step] for step in recipe.steps)
    return START_S + per_million * parameters / 1e6

"""About how long it takes to create a variant, before any was created."""

from bitbench.core.asked.recipe import Backend, Recipe

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
    "vptq": 4.2,
}
GGUF_S_PER_MILLION_PARAMETERS = 0.1
OPENVINO_S_PER_MILLION_PARAMETERS = 0.4


def guess_make_s(recipe: Recipe, parameters: int) -> float:
    """0 where nothing is made: the model as it is, or compressed by an engine while it loads."""
    if recipe.backend in (Backend.NONE, Backend.ENGINE):
        return 0.0
    per_million = sum(S_PER_MILLION_PARAMETERS[step.step] for step in recipe.steps)
    if recipe.backend is Backend.GGUF:
        per_million = GGUF_S_PER_MILLION_PARAMETERS
    if recipe.backend is Backend.OPENVINO:
        per_million = OPENVINO_S_PER_MILLION_PARAMETERS
    return START_S + per_million * parameters / 1e6

"""Recipes for `backend: vptq`: what they may say, and what is made of it."""

from pathlib import Path

import pytest

from bitbench.features.vptq.backend import VptqOptions
from bitbench.quantize import catalog
from bitbench.quantize.backends import maker_of
from bitbench.study.recipe import Recipe
from bitbench.util.errors import RecipeError


def test_the_built_in_recipe_is_named_for_its_codebooks() -> None:
    recipe = catalog.find_recipe("vptq-4096-256")
    assert (recipe.backend, recipe.form, recipe.scheme) == ("vptq", "vptq", None)
    options = VptqOptions.model_validate(recipe.options)
    assert (options.main, options.residual, options.vector) == (4096, 256, 8)
    assert recipe.needs_calibration
    assert recipe.ignored == ("lm_head",)
    assert maker_of(recipe).environment == "quantize"


def test_what_is_left_out_means_what_is_written_out(tmp_path: Path) -> None:
    """They are the same variant."""
    short = Recipe.model_validate({"name": "mine", "backend": "vptq"})
    assert short == Recipe.model_validate({"name": "mine", "backend": "vptq", "options": {"main": 4096, "vector": 8}})
    path = tmp_path / "mine.yaml"
    path.write_text(catalog.recipe_file_text(short))
    assert catalog.read_recipe(path) == short


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps: [{step: quantize, weight_bits: 8}]\n", "`steps` are for backend: llmcompressor, not for vptq"),
        ("options: {main: 5000}\n", "3: options.main: a codebook has 256, 4096 or another power of two of entries"),
        (
            "options: {mian: 4096}\n",
            "3: options.mian: unknown field; did you mean `main`? known fields: main",
        ),
        ("options: {dampening: 2}\n", "3: options.dampening: 2 needs a percent sign"),
    ],
)
def test_a_wrong_recipe_is_told_what_is_right(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"name: mine\nbackend: vptq\n{text}")
    with pytest.raises(RecipeError) as error:
        catalog.read_recipe(path)
    assert said in str(error.value)


def test_the_schema_of_recipes_knows_it() -> None:
    fields = catalog.recipe_schema()["properties"]
    assert "vptq" in fields["backend"]["enum"]
    assert fields["options"]["properties"]["residual"]["default"] == 256

"""Built-in recipes with stable names, and the user's own recipe files."""

from pathlib import Path
from typing import Any

import yaml

from bitbench.study.recipe import Recipe
from bitbench.util import yaml_file
from bitbench.util.errors import RecipeError
from bitbench.util.text import suggest_name

_BUILT_IN = Path(__file__).with_name("recipes")


def make_recipe_schema() -> dict[str, Any]:
    """Return the JSON Schema of a recipe file, for editors."""
    schema = Recipe.model_json_schema(mode="validation")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "bitbench recipe",
        **schema,
    }


def list_built_in_recipes() -> tuple[Recipe, ...]:
    """Return all built-in recipes, sorted by name."""
    return tuple(_read_recipe(path) for _, path in sorted(_collect_recipe_files().items()))


def _collect_recipe_files() -> dict[str, Path]:
    return {path.stem: path for path in _BUILT_IN.glob("*.yaml")}


def find_built_in_recipe_file(name: str) -> Path:
    """Return the file of a built-in recipe, to copy and change, or raise RecipeError."""
    files = _collect_recipe_files()
    if name not in files:
        hint = suggest_name(name, sorted(files))
        lists = "`bitbench recipes` lists all, or give the path of a recipe file (.yaml)"
        raise RecipeError(f"{name!r} is not a recipe; {hint}{lists}")
    return files[name]


def is_recipe_file_name(reference: str) -> bool:
    """Return True for the path of a recipe file. Every other reference is a built-in name."""
    return reference.endswith((".yaml", ".yml"))


def find_recipe(reference: str, folder: Path | None = None) -> Recipe:
    """Return a recipe by its built-in name or its file, relative to `folder` (the study file's)."""
    if not is_recipe_file_name(reference):
        return _read_recipe(find_built_in_recipe_file(reference))
    recipe = _read_recipe((folder or Path()) / Path(reference).expanduser())
    built_in = _collect_recipe_files().get(recipe.name)
    if built_in is not None and _read_recipe(built_in) != recipe:
        raise RecipeError(
            f"{reference}: name: {recipe.name} is a built-in recipe with other content; "
            "rename yours"
        )
    return recipe


def format_recipe_file(recipe: Recipe) -> str:
    """Return the recipe as a file that a person could have written."""
    content = recipe.model_dump(mode="json", exclude_defaults=True)
    text = yaml.safe_dump(
        content, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None
    )
    return str(text)


def _read_recipe(path: Path) -> Recipe:
    """Return a checked recipe. Its calibration text's path is relative to the recipe's folder."""
    missing = f"no recipe file {path}; `bitbench recipes NAME` prints a built-in one to start from"
    text = yaml_file.read_yaml_text(path, missing=missing, error=RecipeError)
    recipe = yaml_file.parse_yaml(
        text,
        Recipe,
        name=str(path),
        outline="a recipe is a mapping (`name: …`, `steps: …`)",
        error=RecipeError,
    )
    if recipe.calibration.source is None:
        return recipe
    source = (path.parent / recipe.calibration.source.expanduser()).absolute()
    calibration = recipe.calibration.model_copy(update={"source": source})
    return recipe.model_copy(update={"calibration": calibration})

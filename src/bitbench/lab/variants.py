"""Finds the variants that a study asks for, and makes those that are missing."""

import hashlib
from pathlib import Path

from bitbench import environments
from bitbench.core.asked.recipe import COMPRESSED_TENSORS, Backend, Recipe
from bitbench.core.cell import Plan
from bitbench.core.ports import Observer
from bitbench.core.recorded.variant import Variant
from bitbench.ground.errors import BitbenchError, ModelError, QuantizeError, RecipeError
from bitbench.ground.units import show_duration
from bitbench.models import library
from bitbench.quantize import catalog, variants
from bitbench.quantize.backends import maker_of
from bitbench.quantize.work import Progress

Asked = tuple[str, str]  # model and recipe; the name of a variant is the study's to give
FORMATS = {Backend.LLMCOMPRESSOR: COMPRESSED_TENSORS, Backend.GGUF: "gguf", Backend.VPTQ: "vptq"}


class Workshop:
    """Recipe files that a study names are looked for in `recipe_folder`, where the study file lies."""

    def __init__(self, home: Path, recipe_folder: Path) -> None:
        self._home = home
        self._recipe_folder = recipe_folder
        self._orders: dict[Asked, variants.Order] = {}
        self._failures: dict[Asked, str] = {}  # why it could not be made

    def variant(self, model: str, recipe_reference: str) -> Variant:
        """As it lies on disk; its path is None where it has still to be made."""
        recipe = catalog.find(recipe_reference, self._recipe_folder)
        found = library.resolve(model, self._home)
        variant = Variant(
            name=f"{found.name}/{recipe.name}",
            model=model,
            recipe=recipe.name,
            path=found.path,
            content_hash=found.content_hash,
            weight_bytes=found.weight_bytes,
            form=recipe.form,
            facts=found.facts,
        )
        if recipe.backend is Backend.NONE:
            return variant.model_copy(update={"form": found.facts.quantization or recipe.form})
        if recipe.backend is Backend.ENGINE:
            return _at_load(variant, recipe)
        return self._quantized(variant, recipe, found)

    def model_folder(self, model: str) -> Path:
        """The model as it is before any recipe, with its tokenizer."""
        return library.resolve(model, self._home).path

    def make_missing(self, plan: Plan, observer: Observer) -> bool:
        """Make what cells wait for; True where there was any. One that fails is warned about, and `variant` then says
        why: it is a result of the study, not its end."""
        wanted = {contender.variant for contender in plan.contenders}
        missing = [
            one for one in plan.variants if one.path is None and one.name in wanted and _asked(one) in self._orders
        ]
        for variant in missing:
            try:
                self._make(variant, observer)
            except (ModelError, QuantizeError, RecipeError) as error:
                failure = self._failures[_asked(variant)] = _failure(error)
                observer.warn(f"{variant.name} {failure}; the others go on, and the same command tries it again")
        return bool(missing)

    def _make(self, variant: Variant, observer: Observer) -> None:
        order = self._orders[_asked(variant)]
        variants.ensure(
            order,
            home=self._home,
            python=environments.python_of(maker_of(order.recipe).environment, self._home),
            on_progress=lambda progress: observer.note(_shown(variant.name, progress)),
        )

    def _quantized(self, base: Variant, recipe: Recipe, found: library.ResolvedModel) -> Variant:
        order = variants.order(
            variants.SourceModel(found.name, found.path, found.content_hash),
            recipe,
            versions=environments.versions(maker_of(recipe).environment, self._home),
        )
        self._orders[_asked(base)] = order
        made = variants.find(order, self._home)
        return base.model_copy(
            update={
                "path": made.path if made else None,
                "content_hash": made.content_hash if made else None,
                "weight_bytes": made.weight_bytes if made else None,
                "facts": base.facts.model_copy(update={"quantization": FORMATS[recipe.backend]}),
                "refusal": None if made else _refusal(order),
                "failure": None if made else self._failures.get(_asked(base)),
            }
        )


def _asked(variant: Variant) -> Asked:
    return variant.model, variant.recipe


def _at_load(base: Variant, recipe: Recipe) -> Variant:
    """The model as it is, and what the engine is told to do with it; its hash stands for both."""
    content = f"{base.content_hash}\n{sorted(recipe.options.items())}"
    stored = base.facts.quantization
    refusal = stored and f"{recipe.name} starts from a model that is not quantized; this one is stored as {stored}"
    return base.model_copy(
        update={
            "at_load": recipe.at_load,
            "content_hash": hashlib.sha256(content.encode()).hexdigest(),
            "refusal": refusal,
        }
    )


def _refusal(order: variants.Order) -> str | None:
    try:
        variants.refuse_impossible(order)
    except (ModelError, RecipeError) as error:
        return str(error)
    return None


def _failure(error: BitbenchError) -> str:
    """With the name of the log and not its folder, which is this machine's; before the cause, which may be long."""
    if isinstance(error, QuantizeError) and error.log_file is not None:
        return f"could not be made (log: variants/{error.log_file.name}): {error.cause}"
    return f"could not be made: {error}"


def _shown(name: str, progress: Progress) -> str:
    left = f", about {show_duration(progress.remaining_s)} left" if progress.remaining_s is not None else ""
    return f"making {name}: {progress.place}{left}"

"""Finds the variants that a study asks for, those that somebody else made among them, and makes those that are
missing."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from bitbench.engines.environments import environment_python, versions
from bitbench.models import library
from bitbench.models.catalog import CATALOG
from bitbench.models.folder import word_token_ids, words_among
from bitbench.models.library import GGUF, ExpectedModel, ResolvedModel
from bitbench.models.quantized import Quantization
from bitbench.ports import Observer
from bitbench.quantize import catalog, variants
from bitbench.quantize.backends import OnProgress, QuantizeProgress, guess_backend_s, maker_of
from bitbench.quantize.calibration import read_calibration
from bitbench.quantize.checkpoint import (
    TOKEN_TYPES,
    TOKENS,
    GgufHeader,
    read_gguf_header,
    read_gguf_tensors,
    refuse_group_size_that_does_not_fit,
)
from bitbench.study.plan import Plan, QualityRefusal, Refusal
from bitbench.study.recipe import COMPRESSED_TENSORS, DENSE_GGUF_TYPES, GGUF_TYPES, Backend, Recipe
from bitbench.study.study import Checkpoint
from bitbench.study.variant import DENSE, NO_MODEL, ExpertFacts, ModelFacts, Variant
from bitbench.util.errors import (
    BitbenchError,
    EngineEnvironmentError,
    ModelError,
    QuantizeError,
    RecipeError,
)

_SPELLED = re.compile(
    rf"(?:^|[-_.])({'|'.join(sorted(GGUF_TYPES, key=len, reverse=True))})(?:$|[-.])", re.IGNORECASE
)
_LARGEST = 2**40  # of any size or count in a header
# Quantizing changes none of them. Vocabularies are padded by some tools, and are no sign of another model.
_KEPT = {
    "layers": "layers",
    "hidden_size": "hidden size",
    "heads": "attention heads",
    "kv_heads": "key/value heads",
}


_SPECIAL = (2, 3)  # unknown and control, as GGUF numbers the types of tokens


def look_up_variant_model(reference: str, home: Path) -> ResolvedModel | ExpectedModel:
    """As `library.look_up_model`; a GGUF file can be a model, too, and says itself what it is."""
    gguf = None if reference in CATALOG else library.resolve_gguf(reference, home)
    return (
        library.look_up_model(reference, home)
        if gguf is None
        else replace(gguf, facts=_gguf_facts(gguf.path))
    )


def is_gguf(model: ResolvedModel | ExpectedModel) -> bool:
    return model.facts.quantization == GGUF


def _word_ids(place: Path) -> tuple[int, ...]:
    """Token ids of ordinary words, of a model's folder or GGUF file."""
    file = _first_gguf(place)
    if file is None:
        return word_token_ids(place)
    values = read_gguf_header(file).values
    return words_among(
        ((text, id) for id, text in enumerate(_listed(values, TOKENS))), _special_ids(values)
    )


def _checkpoint_variant(
    wanted: Checkpoint, model: ResolvedModel | ExpectedModel, home: Path
) -> Variant:
    """With its own files and the facts of its model: packed weights do not show them. Without files where it is not
    downloaded but expected to be what its name says. Raises ModelError."""
    gguf = library.resolve_gguf(wanted.checkpoint, home)
    found = gguf or library.look_up_model(wanted.checkpoint, home)
    label, form = gguf_model_content(gguf.path) if gguf else _content(found)
    recipe = wanted.name or label
    return Variant(
        name=f"{model.name}/{recipe}",
        model=wanted.of,
        recipe=recipe,
        path=found.path,
        content_hash=found.content_hash,
        commit=found.commit,
        checkpoint=wanted.checkpoint,
        weight_bytes=found.weight_bytes,
        form=form,
        facts=model.facts.model_copy(update={"quantization": found.facts.quantization}),
        refusal=None if gguf else _checkpoint_refusal(wanted, found.facts, model.facts),
    )


def _content(found: ResolvedModel | ExpectedModel) -> tuple[str, str]:
    """What to call it, and its form; one that is not quantized has nothing but its name."""
    stored = found.quantization
    return (found.name, DENSE) if stored is None else (stored.label, stored.form)


def gguf_model_content(place: Path) -> tuple[str, str]:
    """By the type in the file's name, or else by that of most weights."""
    first = _first_gguf(place)
    assert first is not None  # it was resolved as one
    spelled = _SPELLED.search(first.stem)
    kind = spelled[1].upper() if spelled else _most_common_type(first)
    return f"gguf-{kind.lower()}", f"gguf/{DENSE}" if kind in (*DENSE_GGUF_TYPES, "F32") else "gguf"


def _most_common_type(file: Path) -> str:
    weights: dict[str, int] = {}
    for tensor in read_gguf_tensors(file):
        weights[tensor.type] = weights.get(tensor.type, 0) + tensor.weights
    return max(weights, key=lambda kind: weights[kind]).upper() if weights else "unknown"


def _first_gguf(place: Path) -> Path | None:
    return place if place.is_file() else next(iter(sorted(place.glob("*.gguf"))), None)


def _gguf_facts(place: Path) -> ModelFacts:
    """What a config.json would say; of a model in several files, as the first of them says it."""
    file = _first_gguf(place)
    assert file is not None  # it was resolved as one
    header = read_gguf_header(file)
    values = header.values

    def count(name: str) -> int | None:
        value = values.get(f"{values.get('general.architecture')}.{name}")
        return value if isinstance(value, int) and 0 < value < _LARGEST else None

    heads, hidden = count("attention.head_count"), count("embedding_length")
    return ModelFacts(
        parameters=_parameters(header, place),
        vocabulary_size=len(_listed(values, TOKENS)) or None,
        special_token_ids=_special_ids(values),
        context_tokens=count("context_length"),
        hidden_size=hidden,
        layers=count("block_count"),
        kv_heads=count("attention.head_count_kv") or heads,
        head_size=count("attention.key_length") or (hidden // heads if hidden and heads else None),
        heads=heads,
        intermediate_size=count("feed_forward_length"),
        tied_embeddings=all(tensor.name != "output.weight" for tensor in header.tensors),
        experts=_gguf_experts(count),
        quantization=GGUF,
    )


def _gguf_experts(count: Callable[[str], int | None]) -> ExpertFacts | None:
    experts, layers = count("expert_count"), count("block_count")
    if experts is None:
        return None
    size = count("expert_feed_forward_length") or count("feed_forward_length")
    is_interleaved = count("interleave_moe_layer_step") is not None
    return ExpertFacts(
        count=experts,
        per_token=count("expert_used_count"),
        size=size,
        layers=None
        if layers is None or is_interleaved
        else max(layers - (count("leading_dense_block_count") or 0), 0),
        shared_size=count("expert_shared_feed_forward_length")
        or (count("expert_shared_count") or 0) * (size or 0),
    )


def _parameters(header: GgufHeader, place: Path) -> int:
    others = sorted(place.glob("*.gguf"))[1:] if place.is_dir() else []
    tensors = [
        *header.tensors,
        *(tensor for other in others for tensor in read_gguf_tensors(other)),
    ]
    return sum(tensor.weights for tensor in tensors)


def _special_ids(values: Mapping[str, object]) -> tuple[int, ...]:
    return tuple(id for id, kind in enumerate(_listed(values, TOKEN_TYPES)) if kind in _SPECIAL)


def _listed(values: Mapping[str, object], key: str) -> list[Any]:
    found = values.get(key)
    return found if isinstance(found, list) else []


def _checkpoint_refusal(wanted: Checkpoint, found: ModelFacts, model: ModelFacts) -> str | None:
    for field, words in _KEPT.items():
        there, here = getattr(found, field), getattr(model, field)
        if None not in (there, here) and there != here:
            return f"{wanted.checkpoint} was not made from {wanted.of}: {words} {there} there, {here} here"
    return None


FoundModel = library.ResolvedModel | library.ExpectedModel
Asked = tuple[str, str]  # model and recipe; the name of a variant is the study's to give


class VariantStore:
    """Recipe files that a study names are looked for in `recipe_folder`, where the study file lies.

    Planning needs neither weights nor environments: a catalog model that is not downloaded is planned from what the
    catalog knows, and `missing` tells what has to come first.
    """

    def __init__(self, home: Path, recipe_folder: Path) -> None:
        self._home = home
        # Many variants are of one model, and many of one recipe: each is read once.
        self._recipe = cache(lambda reference: catalog.find_recipe(reference, recipe_folder))
        self._model = cache(lambda reference: look_up_variant_model(reference, home))
        self._orders: dict[Asked, variants.VariantRequest] = {}
        self._makers: dict[Asked, str] = {}  # the environment that makes each
        self._efforts_s: dict[Asked, float] = {}  # how long that takes, about

    def variant(self, model: str, wanted: str | Checkpoint) -> Variant:
        """As it lies on disk, by the name of a recipe or the checkpoint that stands in its place; its path is None
        where it has still to be made, or its model to be downloaded."""
        if isinstance(wanted, Checkpoint):
            return _checkpoint_variant(wanted, self._model(model), self._home)
        recipe, found = self._recipe(wanted), self._model(model)
        if recipe.backend is Backend.NONE and is_gguf(found):
            return _checkpoint_variant(Checkpoint(of=model, checkpoint=model), found, self._home)
        variant = Variant(
            name=f"{found.name}/{recipe.name}",
            model=model,
            recipe=recipe.name,
            path=found.path,
            content_hash=found.content_hash,
            commit=found.commit,
            weight_bytes=found.weight_bytes,
            form=recipe.form,
            facts=found.facts,
        )
        if recipe.backend is Backend.NONE:
            return (
                variant if found.quantization is None else _as_stored(variant, found.quantization)
            )
        if recipe.backend is Backend.ENGINE:
            return _at_load(variant, recipe)
        return self._quantized(variant, recipe, found)

    def model_folder(self, model: str) -> Path:
        """The model as it is before any recipe, with its tokenizer; of a GGUF file, the file."""
        found = self._model(model)
        return found.path or library.resolve(model, self._home).path  # which says how to get it

    def words(self, model: str) -> tuple[int, ...]:
        """Token ids of its ordinary words."""
        return _word_ids(self.model_folder(model))

    def missing_models(self, plan: Plan) -> list[str]:
        """Those that have to be downloaded before the plan can run."""
        used = _used(plan)
        models = {variant.model for variant in used if self._model(variant.model).path is None}
        checkpoints = {
            variant.checkpoint for variant in used if variant.checkpoint and variant.path is None
        }
        return sorted(models | checkpoints)

    def makers(self, plan: Plan) -> set[str]:
        """The environments in which variants of this plan have still to be made."""
        return {self._makers[key] for key in self._missing(plan) if key in self._makers}

    def making_s(self, plan: Plan) -> float:
        """About how long it takes to create the variants that points wait for."""
        return sum(self._efforts_s.get(key, 0.0) for key in self._missing(plan))

    def _missing(self, plan: Plan) -> list[Asked]:
        return [_asked(variant) for variant in _used(plan) if variant.path is None]

    def make_missing(self, plan: Plan, observer: Observer) -> Plan:
        """Make what points wait for, and give the plan with it. A variant that cannot be made is warned about, and its
        points are refused with the reason: it is a result of the study, not its end."""
        missing = [
            variant
            for variant in _used(plan)
            if variant.path is None and _asked(variant) in self._orders
        ]
        return settle_variants(plan, [self._made(variant, observer) for variant in missing])

    def _made(self, variant: Variant, observer: Observer) -> Variant:
        name = variant.name
        try:
            made = make_ordered_variant(
                self._orders[_asked(variant)],
                self._home,
                lambda progress: observer.note(_shown(name, progress)),
            )
        except (ModelError, QuantizeError, RecipeError) as error:
            failure = _failure(error)
            observer.warn(f"{name} {failure}; the others continue, and the same command retries it")
            return variant.model_copy(update={"failure": failure})
        return _on_disk(variant, made)

    def _quantized(self, base: Variant, recipe: Recipe, found: FoundModel) -> Variant:
        self._makers[_asked(base)] = maker_of(recipe).environment
        self._efforts_s[_asked(base)] = guess_backend_s(recipe, base.facts.parameters or 0)
        stored = (
            COMPRESSED_TENSORS if recipe.backend is Backend.LLMCOMPRESSOR else str(recipe.backend)
        )
        facts = base.facts.model_copy(update={"quantization": stored})
        unmade = base.model_copy(
            update={"path": None, "content_hash": None, "weight_bytes": None, "facts": facts}
        )
        if (order := self._order(found, recipe)) is not None:
            self._orders[_asked(base)] = order
            if (made := variants.find_variant_on_disk(order, self._home)) is not None:
                return _on_disk(unmade, made)
        return unmade.model_copy(update={"refusal": _refusal(found, recipe)})

    def _order(self, found: FoundModel, recipe: Recipe) -> variants.VariantRequest | None:
        """None while the model is not downloaded, or the environment that would make the variant not installed."""
        if isinstance(found, library.ResolvedModel):
            with suppress(EngineEnvironmentError):
                return order_variant(found, recipe, self._home)
        if recipe.needs_calibration:
            read_calibration(recipe.calibration.source)  # raises where there is none
        return None


def order_variant(
    model: library.ResolvedModel,
    recipe: Recipe,
    home: Path,
    *,
    calibration: Path | None = None,
    seed: int = 0,
) -> variants.VariantRequest:
    """One variant by all that decides what it becomes, with the packages that would make it here."""
    return variants.request_variant(
        variants.SourceModel(model.name, model.path, model.content_hash),
        recipe,
        versions=versions(maker_of(recipe).environment, home),
        calibration=calibration,
        seed=seed,
    )


def make_ordered_variant(
    order: variants.VariantRequest, home: Path, on_progress: OnProgress = lambda _: None
) -> variants.MadeVariant:
    """The variant, made now unless it exists. Raises before any work where that is known to be impossible."""
    python = environment_python(maker_of(order.recipe).environment, home)
    return variants.ensure_variant(order, home=home, python=python, on_progress=on_progress)


def _on_disk(variant: Variant, made: variants.MadeVariant) -> Variant:
    return variant.model_copy(
        update={
            "path": made.path,
            "content_hash": made.content_hash,
            "weight_bytes": made.weight_bytes,
        }
    )


def _asked(variant: Variant) -> Asked:
    return variant.model, variant.recipe


def _as_stored(variant: Variant, stored: Quantization) -> Variant:
    """A model that comes quantized is named by what it holds, not by the recipe that leaves it as it is."""
    name = f"{variant.model_name}/{stored.label}"
    return variant.model_copy(update={"name": name, "recipe": stored.label, "form": stored.form})


def _at_load(base: Variant, recipe: Recipe) -> Variant:
    """The model as it is, and what the engine is told to do with it; its hash stands for both."""
    content = f"{base.content_hash}\n{sorted(recipe.options.items())}"
    content_hash = base.content_hash and hashlib.sha256(content.encode()).hexdigest()
    stored = base.facts.quantization
    refusal = (
        stored
        and f"{recipe.name} starts from a model that is not quantized; this model is stored as {stored}"
    )
    return base.model_copy(
        update={
            "at_load": recipe.at_load,
            "content_hash": content_hash,
            "refusal": refusal,
        }
    )


def _used(plan: Plan) -> list[Variant]:
    wanted = {config.variant for config in plan.configs}
    return [
        variant for variant in plan.variants if variant.name in wanted and variant.name != NO_MODEL
    ]


def _refusal(found: FoundModel, recipe: Recipe) -> str | None:
    try:
        if isinstance(found, library.ResolvedModel):
            variants.refuse_impossible_variant(found.path, recipe)
        else:
            refuse_group_size_that_does_not_fit(recipe, found.layers)
    except (ModelError, RecipeError) as error:
        return str(error)
    return None


def _failure(error: BitbenchError) -> str:
    """With the name of the log and not its folder, which is this machine's; before the cause, which may be long."""
    if isinstance(error, QuantizeError) and error.log_file is not None:
        return f"could not be created (log: variants/{error.log_file.name}): {error.cause}"
    return f"could not be created: {error}"


def _shown(name: str, progress: QuantizeProgress) -> str:
    return f"creating {name}: {progress.place}"


def settle_variants(plan: Plan, tried: Iterable[Variant]) -> Plan:
    """The same plan with these variants as they are now. What waited for one that could not be made is refused with
    its failure; everything else was decided before, by facts that making a variant does not change."""
    now = {variant.name: variant for variant in tried}
    failures = {
        name: variant.failure for name, variant in now.items() if variant.failure is not None
    }
    return plan.model_copy(
        update={
            "variants": tuple(now.get(variant.name, variant) for variant in plan.variants),
            "points": tuple(point for point in plan.points if point.config.variant not in failures),
            "refusals": (
                *plan.refusals,
                *(
                    Refusal(point=point, reason=failures[point.config.variant], was_tried=True)
                    for point in plan.points
                    if point.config.variant in failures
                ),
            ),
            "expectations": tuple(
                expectation
                for expectation in plan.expectations
                if expectation.config.variant not in failures
            ),
            "in_float32": tuple(
                config for config in plan.in_float32 if config.variant not in failures
            ),
            "quality": tuple(config for config in plan.quality if config.variant not in failures),
            "quality_refusals": (
                *plan.quality_refusals,
                *(
                    QualityRefusal(config=config, reason=failures[config.variant])
                    for config in plan.quality
                    if config.variant in failures
                ),
            ),
        }
    )

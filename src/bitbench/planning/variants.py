"""The variants of a study: finding them on disk, checkpoints from elsewhere included, and making
the missing ones."""

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
from bitbench.models.folder import filter_word_ids, read_word_token_ids
from bitbench.models.library import GGUF, ExpectedModel, ResolvedModel
from bitbench.models.quantized import Quantization
from bitbench.ports import Observer
from bitbench.quantize import catalog, variants
from bitbench.quantize.backends import OnProgress, QuantizeProgress, find_maker, guess_backend_s
from bitbench.quantize.calibration import read_calibration
from bitbench.quantize.checkpoint import (
    TOKEN_TYPES,
    TOKENS,
    GgufHeader,
    read_gguf_header,
    read_gguf_tensors,
    refuse_group_size_that_does_not_fit,
)
from bitbench.study.plan import Config, Plan, Point, QualityRefusal, Refusal
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
_LARGEST = 2**40  # upper limit of any size or count in a header
# Quantizing changes none of these. Some tools pad vocabularies, so a size there proves nothing.
_UNCHANGED_FACTS = {
    "layers": "layers",
    "hidden_size": "hidden size",
    "heads": "attention heads",
    "kv_heads": "key/value heads",
}
_SPECIAL = (2, 3)  # GGUF's numbers for the token types "unknown" and "control"


def look_up_variant_model(reference: str, home: Path) -> ResolvedModel | ExpectedModel:
    """Return a model as `library.look_up_model` does, or a GGUF file with the facts of its
    header."""
    gguf = None if reference in CATALOG else library.resolve_gguf(reference, home)
    if gguf is None:
        return library.look_up_model(reference, home)
    return replace(gguf, facts=_read_gguf_facts(gguf.path))


def is_gguf(model: ResolvedModel | ExpectedModel) -> bool:
    return model.facts.quantization == GGUF


def _collect_word_ids(path: Path) -> tuple[int, ...]:
    """Return the token ids of ordinary words, for a model's folder or a GGUF file."""
    file = _find_first_gguf(path)
    if file is None:
        return read_word_token_ids(path)
    values = read_gguf_header(file).values
    tokens = ((text, id) for id, text in enumerate(_get_list(values, TOKENS)))
    return filter_word_ids(tokens, _collect_special_ids(values))


def _make_checkpoint_variant(
    checkpoint: Checkpoint, model: ResolvedModel | ExpectedModel, home: Path
) -> Variant:
    """Return the variant with the checkpoint's files and the facts of its model, which packed
    weights do not show. It has no files if its content is only expected from its name.
    Raise ModelError."""
    gguf = library.resolve_gguf(checkpoint.checkpoint, home)
    source = gguf or library.look_up_model(checkpoint.checkpoint, home)
    if gguf:
        label, form = read_gguf_label_and_form(gguf.path)
        refusal = None
    else:
        label, form = _get_label_and_form(source)
        refusal = _find_checkpoint_mismatch(checkpoint, source.facts, model.facts)
    recipe = checkpoint.name or label
    return Variant(
        name=f"{model.name}/{recipe}",
        model=checkpoint.of,
        recipe=recipe,
        path=source.path,
        content_hash=source.content_hash,
        commit=source.commit,
        checkpoint=checkpoint.checkpoint,
        weight_bytes=source.weight_bytes,
        form=form,
        facts=model.facts.model_copy(update={"quantization": source.facts.quantization}),
        refusal=refusal,
    )


def _get_label_and_form(source: ResolvedModel | ExpectedModel) -> tuple[str, str]:
    """Return a label and the form of a model. The label of an unquantized one is its name."""
    quantization = source.quantization
    if quantization is None:
        return source.name, DENSE
    return quantization.label, quantization.form


def read_gguf_label_and_form(path: Path) -> tuple[str, str]:
    """Return a label and the form of a GGUF model, by the type in the file's name, or else by the
    type of most weights."""
    first = _find_first_gguf(path)
    assert first is not None  # it was resolved as one
    spelled = _SPELLED.search(first.stem)
    kind = spelled[1].upper() if spelled else _find_most_common_type(first)
    is_dense = kind in (*DENSE_GGUF_TYPES, "F32")
    return f"gguf-{kind.lower()}", f"gguf/{DENSE}" if is_dense else "gguf"


def _find_most_common_type(file: Path) -> str:
    weights: dict[str, int] = {}
    for tensor in read_gguf_tensors(file):
        weights[tensor.type] = weights.get(tensor.type, 0) + tensor.weights
    return max(weights, key=lambda kind: weights[kind]).upper() if weights else "unknown"


def _find_first_gguf(path: Path) -> Path | None:
    """Return the file itself, the first GGUF file in a folder, or None."""
    if path.is_file():
        return path
    return min(path.glob("*.gguf"), default=None)


def _read_gguf_facts(path: Path) -> ModelFacts:
    """Return what a config.json would say. For a model in several files, the first one counts."""
    file = _find_first_gguf(path)
    assert file is not None  # it was resolved as one
    header = read_gguf_header(file)
    values = header.values
    architecture = values.get("general.architecture")

    def count(name: str) -> int | None:
        value = values.get(f"{architecture}.{name}")
        return value if isinstance(value, int) and 0 < value < _LARGEST else None

    heads = count("attention.head_count")
    hidden_size = count("embedding_length")
    head_size = count("attention.key_length")
    if head_size is None and hidden_size and heads:
        head_size = hidden_size // heads
    return ModelFacts(
        parameters=_count_parameters(header, path),
        vocabulary_size=len(_get_list(values, TOKENS)) or None,
        special_token_ids=_collect_special_ids(values),
        context_tokens=count("context_length"),
        hidden_size=hidden_size,
        layers=count("block_count"),
        kv_heads=count("attention.head_count_kv") or heads,
        head_size=head_size,
        heads=heads,
        intermediate_size=count("feed_forward_length"),
        tied_embeddings=all(tensor.name != "output.weight" for tensor in header.tensors),
        experts=_read_gguf_experts(count),
        quantization=GGUF,
    )


def _read_gguf_experts(count: Callable[[str], int | None]) -> ExpertFacts | None:
    """Return the experts of a mixture-of-experts model, or None for a dense one."""
    experts = count("expert_count")
    if experts is None:
        return None
    size = count("expert_feed_forward_length") or count("feed_forward_length")
    layers = count("block_count")
    if count("interleave_moe_layer_step") is not None:
        layers = None
    elif layers is not None:
        layers = max(layers - (count("leading_dense_block_count") or 0), 0)
    shared_size = count("expert_shared_feed_forward_length")
    if shared_size is None:
        shared_size = (count("expert_shared_count") or 0) * (size or 0)
    return ExpertFacts(
        count=experts,
        per_token=count("expert_used_count"),
        size=size,
        layers=layers,
        shared_size=shared_size,
    )


def _count_parameters(header: GgufHeader, path: Path) -> int:
    """Return the number of weights in all files of a model. `header` belongs to the first file."""
    parameters = sum(tensor.weights for tensor in header.tensors)
    if path.is_dir():
        for file in sorted(path.glob("*.gguf"))[1:]:
            parameters += sum(tensor.weights for tensor in read_gguf_tensors(file))
    return parameters


def _collect_special_ids(values: Mapping[str, object]) -> tuple[int, ...]:
    return tuple(id for id, kind in enumerate(_get_list(values, TOKEN_TYPES)) if kind in _SPECIAL)


def _get_list(values: Mapping[str, object], key: str) -> list[Any]:
    value = values.get(key)
    return value if isinstance(value, list) else []


def _find_checkpoint_mismatch(
    checkpoint: Checkpoint, its_facts: ModelFacts, model_facts: ModelFacts
) -> str | None:
    """Return why the checkpoint cannot be one of the model, or None."""
    for name, words in _UNCHANGED_FACTS.items():
        there = getattr(its_facts, name)
        here = getattr(model_facts, name)
        if None not in (there, here) and there != here:
            return (
                f"{checkpoint.checkpoint} was not made from {checkpoint.of}: "
                f"{words} {there} there, {here} here"
            )
    return None


FoundModel = library.ResolvedModel | library.ExpectedModel
VariantKey = tuple[str, str]  # model and recipe, since the study chooses a variant's name


class VariantStore:
    """The variants on this machine, with the recipe files of `recipe_folder`, the study's folder.

    Planning needs neither weights nor environments. A catalog model that is not downloaded is
    planned from the catalog's facts, and `missing_models` lists it.
    """

    def __init__(self, home: Path, recipe_folder: Path) -> None:
        self._home = home
        # Many variants share a model or a recipe, so each is read once.
        self._recipe = cache(lambda reference: catalog.find_recipe(reference, recipe_folder))
        self._model = cache(lambda reference: look_up_variant_model(reference, home))
        self._orders: dict[VariantKey, variants.VariantRequest] = {}
        self._makers: dict[VariantKey, str] = {}  # the environment that makes each
        self._efforts_s: dict[VariantKey, float] = {}  # about how long that takes

    def variant(self, model: str, source: str | Checkpoint) -> Variant:
        """Return a variant as it is on disk, by a recipe's name or a checkpoint. Its path is None
        if it has to be made first, or its model to be downloaded."""
        if isinstance(source, Checkpoint):
            return _make_checkpoint_variant(source, self._model(model), self._home)
        recipe = self._recipe(source)
        base_model = self._model(model)
        if recipe.backend is Backend.NONE and is_gguf(base_model):
            checkpoint = Checkpoint(of=model, checkpoint=model)
            return _make_checkpoint_variant(checkpoint, base_model, self._home)
        variant = Variant(
            name=f"{base_model.name}/{recipe.name}",
            model=model,
            recipe=recipe.name,
            path=base_model.path,
            content_hash=base_model.content_hash,
            commit=base_model.commit,
            weight_bytes=base_model.weight_bytes,
            form=recipe.form,
            facts=base_model.facts,
        )
        if recipe.backend is Backend.ENGINE:
            return _make_variant_at_load(variant, recipe)
        if recipe.backend is not Backend.NONE:
            return self._quantized(variant, recipe, base_model)
        if base_model.quantization is not None:
            return _name_as_stored(variant, base_model.quantization)
        return variant

    def model_folder(self, model: str) -> Path:
        """Return the folder of the unchanged model with its tokenizer, or a GGUF model's file.
        Raise ModelError with the command that downloads it."""
        return self._model(model).path or library.resolve(model, self._home).path

    def words(self, model: str) -> tuple[int, ...]:
        """Return the token ids of the model's ordinary words."""
        return _collect_word_ids(self.model_folder(model))

    def missing_models(self, plan: Plan) -> list[str]:
        """Return the models and checkpoints to download before the plan can run."""
        names: set[str] = set()
        for variant in _list_used_variants(plan):
            if self._model(variant.model).path is None:
                names.add(variant.model)
            if variant.checkpoint and variant.path is None:
                names.add(variant.checkpoint)
        return sorted(names)

    def list_makers(self, plan: Plan) -> set[str]:
        """Return the environments that make the plan's missing variants."""
        return {self._makers[key] for key in self._list_missing(plan) if key in self._makers}

    def making_s(self, plan: Plan) -> float:
        """Return the approximate seconds to create the plan's missing variants."""
        return sum(self._efforts_s.get(key, 0.0) for key in self._list_missing(plan))

    def _list_missing(self, plan: Plan) -> list[VariantKey]:
        return [
            _get_variant_key(variant)
            for variant in _list_used_variants(plan)
            if variant.path is None
        ]

    def make_missing(self, plan: Plan, observer: Observer) -> Plan:
        """Make the plan's missing variants, and return the plan with them. A variant that cannot be
        made causes a warning, and its points are refused with the reason."""
        made = []
        for variant in _list_used_variants(plan):
            if variant.path is None and _get_variant_key(variant) in self._orders:
                made.append(self._made(variant, observer))
        return settle_variants(plan, made)

    def _made(self, variant: Variant, observer: Observer) -> Variant:
        name = variant.name

        def show_progress(progress: QuantizeProgress) -> None:
            observer.note(f"creating {name}: {progress.place}")

        try:
            made = make_ordered_variant(
                self._orders[_get_variant_key(variant)], self._home, show_progress
            )
        except (ModelError, QuantizeError, RecipeError) as error:
            failure = _describe_failure(error)
            observer.warn(f"{name} {failure}; the others continue, and the same command retries it")
            return variant.model_copy(update={"failure": failure})
        return _add_files(variant, made)

    def _quantized(self, base: Variant, recipe: Recipe, model: FoundModel) -> Variant:
        """Return the variant that a recipe makes: on disk, or without a path until it is made."""
        key = _get_variant_key(base)
        self._makers[key] = find_maker(recipe).environment
        self._efforts_s[key] = guess_backend_s(recipe, base.facts.parameters or 0)
        quantization = str(recipe.backend)
        if recipe.backend is Backend.LLMCOMPRESSOR:
            quantization = COMPRESSED_TENSORS
        facts = base.facts.model_copy(update={"quantization": quantization})
        unmade = base.model_copy(
            update={"path": None, "content_hash": None, "weight_bytes": None, "facts": facts}
        )
        order = self._order(model, recipe)
        if order is not None:
            self._orders[key] = order
            made = variants.find_variant_on_disk(order, self._home)
            if made is not None:
                return _add_files(unmade, made)
        return unmade.model_copy(update={"refusal": _find_refusal(model, recipe)})

    def _order(self, model: FoundModel, recipe: Recipe) -> variants.VariantRequest | None:
        """Return the request for the variant, or None if its model is not downloaded or the
        environment that makes it is not installed."""
        if isinstance(model, library.ResolvedModel):
            with suppress(EngineEnvironmentError):
                return order_variant(model, recipe, self._home)
        if recipe.needs_calibration:
            read_calibration(recipe.calibration.source)  # raises if it is missing
        return None


def order_variant(
    model: library.ResolvedModel,
    recipe: Recipe,
    home: Path,
    *,
    calibration: Path | None = None,
    seed: int = 0,
) -> variants.VariantRequest:
    """Return a request for one variant, with the versions of the packages that would make it.
    Everything that decides the variant's content is in it."""
    return variants.request_variant(
        variants.SourceModel(model.name, model.path, model.content_hash),
        recipe,
        versions=versions(find_maker(recipe).environment, home),
        calibration=calibration,
        seed=seed,
    )


def make_ordered_variant(
    order: variants.VariantRequest, home: Path, on_progress: OnProgress = lambda _: None
) -> variants.MadeVariant:
    """Return the variant, and make it first if it is missing. Raise before any work if that is
    known to be impossible."""
    python = environment_python(find_maker(order.recipe).environment, home)
    return variants.ensure_variant(order, home=home, python=python, on_progress=on_progress)


def _add_files(variant: Variant, made: variants.MadeVariant) -> Variant:
    return variant.model_copy(
        update={
            "path": made.path,
            "content_hash": made.content_hash,
            "weight_bytes": made.weight_bytes,
        }
    )


def _get_variant_key(variant: Variant) -> VariantKey:
    return variant.model, variant.recipe


def _name_as_stored(variant: Variant, stored: Quantization) -> Variant:
    """Return the variant of a model that is stored quantized, named by its content rather than by
    the recipe, which changes nothing."""
    name = f"{variant.model_name}/{stored.label}"
    return variant.model_copy(update={"name": name, "recipe": stored.label, "form": stored.form})


def _make_variant_at_load(base: Variant, recipe: Recipe) -> Variant:
    """Return the variant that the engine compresses at load. Its hash covers the model and the
    options."""
    content = f"{base.content_hash}\n{sorted(recipe.options.items())}"
    content_hash = base.content_hash and hashlib.sha256(content.encode()).hexdigest()
    stored = base.facts.quantization
    refusal = stored and (
        f"{recipe.name} starts from a model that is not quantized; this model is stored as {stored}"
    )
    return base.model_copy(
        update={
            "at_load": recipe.at_load,
            "content_hash": content_hash,
            "refusal": refusal,
        }
    )


def _list_used_variants(plan: Plan) -> list[Variant]:
    """Return the variants of configs that will run, without the placeholder for no model."""
    names = {config.variant for config in plan.configs} - {NO_MODEL}
    return [variant for variant in plan.variants if variant.name in names]


def _find_refusal(model: FoundModel, recipe: Recipe) -> str | None:
    """Return why the recipe cannot be applied to the model, or None."""
    try:
        if isinstance(model, library.ResolvedModel):
            variants.refuse_impossible_variant(model.path, recipe)
        else:
            refuse_group_size_that_does_not_fit(recipe, model.layers)
    except (ModelError, RecipeError) as error:
        return str(error)
    return None


def _describe_failure(error: BitbenchError) -> str:
    """Return the failure with the log's name. Its folder is left out, since it differs by machine.
    The cause comes last, since it may be long."""
    if isinstance(error, QuantizeError) and error.log_file is not None:
        return f"could not be created (log: variants/{error.log_file.name}): {error.cause}"
    return f"could not be created: {error}"


def settle_variants(plan: Plan, tried: Iterable[Variant]) -> Plan:
    """Return the plan with these variants as they are now. Points of a failed variant are refused
    with its failure. Making a variant changes no other decision of the plan."""
    by_name = {variant.name: variant for variant in tried}
    failures: dict[str, str] = {}
    for name, variant in by_name.items():
        if variant.failure is not None:
            failures[name] = variant.failure

    points: list[Point] = []
    refusals = list(plan.refusals)
    for point in plan.points:
        failure = failures.get(point.config.variant)
        if failure is None:
            points.append(point)
        else:
            refusals.append(Refusal(point=point, reason=failure, was_tried=True))

    quality: list[Config] = []
    quality_refusals = list(plan.quality_refusals)
    for config in plan.quality:
        failure = failures.get(config.variant)
        if failure is None:
            quality.append(config)
        else:
            quality_refusals.append(QualityRefusal(config=config, reason=failure))

    expectations = [item for item in plan.expectations if item.config.variant not in failures]
    in_float32 = [config for config in plan.in_float32 if config.variant not in failures]
    return plan.model_copy(
        update={
            "variants": tuple(by_name.get(variant.name, variant) for variant in plan.variants),
            "points": tuple(points),
            "refusals": tuple(refusals),
            "expectations": tuple(expectations),
            "in_float32": tuple(in_float32),
            "quality": tuple(quality),
            "quality_refusals": tuple(quality_refusals),
        }
    )

"""What somebody else made: GGUF files as models, variants, and whether these can be of the model that a study says."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bitbench.models import library
from bitbench.models.catalog import CATALOG
from bitbench.models.library import GGUF, ExpectedModel, ResolvedModel
from bitbench.models.words import word_token_ids, words_among
from bitbench.quantize.gguf_header import TOKEN_TYPES, TOKENS, GgufHeader, read_header, read_tensors
from bitbench.study.recipe import DENSE_GGUF_TYPES, GGUF_TYPES
from bitbench.study.study import Checkpoint
from bitbench.study.variant import DENSE, ExpertFacts, ModelFacts, Variant

_SPELLED = re.compile(rf"(?:^|[-_.])({'|'.join(sorted(GGUF_TYPES, key=len, reverse=True))})(?:$|[-.])", re.IGNORECASE)
_LARGEST = 2**40  # of any size or count in a header
# Quantizing changes none of them. Vocabularies are padded by some tools, and are no sign of another model.
_KEPT = {"layers": "layers", "hidden_size": "hidden size", "heads": "attention heads", "kv_heads": "key/value heads"}


_SPECIAL = (2, 3)  # unknown and control, as GGUF numbers the types of tokens


def look_up(reference: str, home: Path) -> ResolvedModel | ExpectedModel:
    """As `library.look_up`; a GGUF file can be a model, too, and says itself what it is."""
    gguf = None if reference in CATALOG else library.resolve_gguf(reference, home)
    return library.look_up(reference, home) if gguf is None else replace(gguf, facts=_gguf_facts(gguf.path))


def is_gguf(model: ResolvedModel | ExpectedModel) -> bool:
    return model.facts.quantization == GGUF


def word_ids(place: Path) -> tuple[int, ...]:
    """Token ids of ordinary words, of a model's folder or GGUF file."""
    file = _first_gguf(place)
    if file is None:
        return word_token_ids(place)
    values = read_header(file).values
    return words_among(((text, id) for id, text in enumerate(_listed(values, TOKENS))), _special_ids(values))


def checkpoint_variant(wanted: Checkpoint, model: ResolvedModel | ExpectedModel, home: Path) -> Variant:
    """With its own files and the facts of its model: packed weights do not show them. Without files where it is not
    downloaded but expected to be what its name says. Raises ModelError."""
    gguf = library.resolve_gguf(wanted.checkpoint, home)
    found = gguf or library.look_up(wanted.checkpoint, home)
    label, form = gguf_content(gguf.path) if gguf else _content(found)
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
        refusal=None if gguf else _refusal(wanted, found.facts, model.facts),
    )


def _content(found: ResolvedModel | ExpectedModel) -> tuple[str, str]:
    """What to call it, and its form; one that is not quantized has nothing but its name."""
    stored = found.quantization
    return (found.name, DENSE) if stored is None else (stored.label, stored.form)


def gguf_content(place: Path) -> tuple[str, str]:
    """By the type in the file's name, or else by that of most weights."""
    first = _first_gguf(place)
    assert first is not None  # it was resolved as one
    spelled = _SPELLED.search(first.stem)
    kind = spelled[1].upper() if spelled else _most_common_type(first)
    return f"gguf-{kind.lower()}", f"gguf/{DENSE}" if kind in (*DENSE_GGUF_TYPES, "F32") else "gguf"


def _most_common_type(file: Path) -> str:
    weights: dict[str, int] = {}
    for tensor in read_tensors(file):
        weights[tensor.type] = weights.get(tensor.type, 0) + tensor.weights
    return max(weights, key=lambda kind: weights[kind]).upper() if weights else "unknown"


def _first_gguf(place: Path) -> Path | None:
    return place if place.is_file() else next(iter(sorted(place.glob("*.gguf"))), None)


def _gguf_facts(place: Path) -> ModelFacts:
    """What a config.json would say; of a model in several files, as the first of them says it."""
    file = _first_gguf(place)
    assert file is not None  # it was resolved as one
    header = read_header(file)
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
        layers=None if layers is None or is_interleaved else max(layers - (count("leading_dense_block_count") or 0), 0),
        shared_size=count("expert_shared_feed_forward_length") or (count("expert_shared_count") or 0) * (size or 0),
    )


def _parameters(header: GgufHeader, place: Path) -> int:
    others = sorted(place.glob("*.gguf"))[1:] if place.is_dir() else []
    tensors = [*header.tensors, *(tensor for other in others for tensor in read_tensors(other))]
    return sum(tensor.weights for tensor in tensors)


def _special_ids(values: Mapping[str, object]) -> tuple[int, ...]:
    return tuple(id for id, kind in enumerate(_listed(values, TOKEN_TYPES)) if kind in _SPECIAL)


def _listed(values: Mapping[str, object], key: str) -> list[Any]:
    found = values.get(key)
    return found if isinstance(found, list) else []


def _refusal(wanted: Checkpoint, found: ModelFacts, model: ModelFacts) -> str | None:
    for field, words in _KEPT.items():
        there, here = getattr(found, field), getattr(model, field)
        if None not in (there, here) and there != here:
            return f"{wanted.checkpoint} was not made from {wanted.of}: {words} {there} there, {here} here"
    return None

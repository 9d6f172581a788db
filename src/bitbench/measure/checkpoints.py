"""Variants that somebody else made: what they are, and whether they can be of the model that a study says."""

import re
from pathlib import Path

from bitbench.models import library
from bitbench.models.library import ExpectedModel, ResolvedModel
from bitbench.quantize.gguf_header import read_tensors
from bitbench.study.recipe import DENSE_GGUF_TYPES, GGUF_TYPES
from bitbench.study.study import Checkpoint
from bitbench.study.variant import DENSE, ModelFacts, Variant

_SPELLED = re.compile(rf"(?:^|[-_.])({'|'.join(sorted(GGUF_TYPES, key=len, reverse=True))})(?:$|[-.])", re.IGNORECASE)
# Quantizing changes none of them. Vocabularies are padded by some tools, and are no sign of another model.
_KEPT = {"layers": "layers", "hidden_size": "hidden size", "heads": "attention heads", "kv_heads": "key/value heads"}


def checkpoint_variant(wanted: Checkpoint, model: ResolvedModel | ExpectedModel, home: Path) -> Variant:
    """With its own files and the facts of its model: packed weights do not show them. Without files where it is not
    downloaded but expected to be what its name says. Raises ModelError."""
    gguf = library.resolve_gguf(wanted.checkpoint, home)
    found = gguf or library.look_up(wanted.checkpoint, home)
    label, form = _gguf_content(gguf.path) if gguf else _content(found)
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


def _gguf_content(place: Path) -> tuple[str, str]:
    """By the type in the file's name, or else by that of most weights."""
    first = place if place.is_file() else sorted(place.glob("*.gguf"))[0]
    spelled = _SPELLED.search(first.stem)
    kind = spelled[1].upper() if spelled else _most_common_type(first)
    return f"gguf-{kind.lower()}", f"gguf/{DENSE}" if kind in (*DENSE_GGUF_TYPES, "F32") else "gguf"


def _most_common_type(file: Path) -> str:
    weights: dict[str, int] = {}
    for tensor in read_tensors(file):
        weights[tensor.type] = weights.get(tensor.type, 0) + tensor.weights
    return max(weights, key=lambda kind: weights[kind]).upper() if weights else "unknown"


def _refusal(wanted: Checkpoint, found: ModelFacts, model: ModelFacts) -> str | None:
    for field, words in _KEPT.items():
        there, here = getattr(found, field), getattr(model, field)
        if None not in (there, here) and there != here:
            return f"{wanted.checkpoint} was not made from {wanted.of}: {words} {there} there, {here} here"
    return None

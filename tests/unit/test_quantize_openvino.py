"""Converting to OpenVINO's format, with stand-ins for the libraries: what is asked of them, and what they leave."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from bitbench.quantize import catalog
from bitbench.quantize.backends import Work, find_maker, guess_backend_s
from bitbench.quantize.manifest import StoredBits, WorkerFacts, compute_stored_bits, weight_bytes
from bitbench.util.errors import QuantizeError
from tests.support.stand_in_environment import stand_in_python

# Stands in for optimum-intel: writes what it was asked for in the place of a model.
OPTIMUM = """
import json, os
from pathlib import Path
class OVWeightQuantizationConfig(dict):
    pass
class OVModelForCausalLM:
    def __init__(self, asked):
        self.asked = asked
    @classmethod
    def from_pretrained(cls, model, **asked):
        if Path(model).name == "broken":
            raise ValueError("Trying to export a foo model, that is a custom or unsupported architecture")
        print("a line that is no report")
        return cls({**asked, "offline": os.environ["HF_HUB_OFFLINE"]})
    def save_pretrained(self, target):
        target.mkdir()
        (target / "openvino_model.xml").write_text(json.dumps(self.asked))
        (target / "openvino_model.bin").write_bytes(bytes(64))
"""
PACKAGES = {
    "nncf": "3.4.0",
    "openvino": "2026.4.1",
    "optimum_intel": "2.2.0",
    "torch": "2.13",
    "transformers": "5.5",
}


def work_on(recipe: str, tmp_path: Path, model: str = "small") -> Work:
    environment, folder, source = tmp_path / "env", tmp_path / "making", tmp_path / model
    python = stand_in_python(environment, optimum="")
    site = next(environment.glob("lib/python*/site-packages"))
    (site / "optimum" / "intel.py").write_text(OPTIMUM)
    for name, version in PACKAGES.items():
        metadata = site / f"{name}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(
            f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
        )
    folder.mkdir()
    source.mkdir()
    (source / "tokenizer.json").write_text("{}")
    lock_fd = os.open(os.devnull, os.O_RDONLY)
    return Work(source, catalog.find_recipe(recipe), None, 0, folder, python, lock_fd)


def compress(work: Work) -> WorkerFacts:
    return find_maker(work.recipe).compress(work, lambda _: None)


@pytest.mark.parametrize(
    ("recipe", "unasked_8bit", "rounding"),
    [
        ("openvino-bf16", False, None),
        ("openvino-int8", None, {"bits": 8, "sym": False}),
        ("openvino-int4", None, {"bits": 4, "sym": False, "group_size": 64, "ratio": 1.0}),
    ],
)
def test_what_is_asked_of_optimum(
    recipe: str, unasked_8bit: bool | None, rounding: dict[str, object] | None, tmp_path: Path
) -> None:
    work = work_on(recipe, tmp_path)
    facts = compress(work)
    asked = json.loads((work.checkpoint / "openvino_model.xml").read_text())
    assert asked["quantization_config"] == rounding
    assert asked["load_in_8bit"] is unasked_8bit
    assert (asked["export"], asked["compile"], asked["offline"]) == (True, False, "1")
    assert facts.versions["optimum-intel"] == "2.2.0"
    assert sorted(path.name for path in work.checkpoint.iterdir()) == [
        "openvino_model.bin", "openvino_model.xml", "tokenizer.json",
    ]  # fmt: skip


def test_a_model_that_it_cannot_convert_is_told_in_its_words(tmp_path: Path) -> None:
    with pytest.raises(
        QuantizeError,
        match="OpenVINO could not create openvino-int8: ValueError: Trying to export a foo",
    ):
        compress(work_on("openvino-int8", tmp_path, model="broken"))


def test_bits_are_those_of_its_file_of_weights(tmp_path: Path) -> None:
    header = {"a.weight": {"dtype": "F32", "shape": [8, 4], "data_offsets": [0, 128]}}
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + np.zeros(32, np.float32).tobytes()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(content)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "openvino_model.bin").write_bytes(bytes(64))
    (checkpoint / "openvino_model.xml").write_bytes(bytes(1000))
    assert weight_bytes(checkpoint) == 64
    recipe = catalog.find_recipe("openvino-int8")
    assert compute_stored_bits(tmp_path / "model", checkpoint, recipe) == StoredBits(
        whole_model=16.0
    )
    assert guess_backend_s(recipe, 135_000_000) > 20

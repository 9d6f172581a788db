"""Shapes without weights: what is written, what is known before, what is refused, and that it is said."""

import json
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from bitbench.features.shapes import checkpoint, weights
from bitbench.features.shapes.checkpoint import (
    build_tokenizer,
    find_shape,
    format_shape_reference,
    make_checkpoint,
)
from bitbench.features.shapes.weights import iter_random_weights
from bitbench.machine.workplace import Workplace
from bitbench.models import library, shapes
from bitbench.models.shapes import SHAPES, Shape, split_into_shards
from bitbench.planning.plan import plan_study
from bitbench.planning.readiness import make_model_ready
from bitbench.util.errors import ExitCode, ModelError
from bitbench.util.model_files import StoredTensor, read_safetensors_headers
from tests.command_line import bitbench

SMALL = MappingProxyType(
    {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 16,
    }
)


def small(name: str = "qwen3-4b", **config: object) -> Shape:
    """Another shape's configuration in a size that takes no time."""
    sizes = {
        **SMALL,
        "num_key_value_heads": 2,
        "vocab_size": 5_000,
        "bos_token_id": 3,
        "eos_token_id": [4_999, 7],
    }
    return Shape("small", ("Nobody/Small",), {**SHAPES[name].config, **sizes, **config})


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Shape:
    shape = small()
    monkeypatch.setitem(SHAPES, shape.name, shape)
    return shape


def numbers(path: Path, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    entry = json.loads(content[8 : 8 + length])[name]
    begin, end = entry["data_offsets"]
    raw = np.frombuffer(content[8 + length :][begin:end], "<u2").astype(np.uint32) << 16
    return raw.view(np.float32).reshape(entry["shape"])


@pytest.mark.parametrize(
    "name", ["smollm2-135m", "qwen2.5-0.5b", "qwen3-4b", "qwen3-30b-a3b", "gemma-3-1b"]
)
def test_what_is_written_is_what_was_expected(name: str, tmp_path: Path) -> None:
    shape = small(name, **({"num_experts": 4} if "a3b" in name else {}))
    folder = make_checkpoint(shape, tmp_path)
    assert read_safetensors_headers(folder) == shape.tensors
    found = library.resolve(str(folder), tmp_path / "home")
    assert (found.facts, found.weight_bytes) == (shape.facts, shape.weight_bytes)
    assert found.facts.random_weights


def test_shards_are_listed_and_as_large_as_they_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "SHARD_BYTES", 100_000)
    shape = small()
    parts = split_into_shards(shape.tensors)
    assert len(parts) > 2
    assert [name for part in parts for name in part] == list(shape.tensors)
    assert all(
        sum(one.size_bytes for one in part.values()) <= 100_000 or len(part) == 1 for part in parts
    )
    folder = make_checkpoint(shape, tmp_path)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == shape.tensors.keys()
    assert {path.name for path in folder.glob("*.safetensors")} == set(index["weight_map"].values())
    assert read_safetensors_headers(folder) == shape.tensors


def test_no_piece_is_larger_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_PIECE", 1_000)
    tensor = StoredTensor("BF16", (33, 101), 2 * 33 * 101)
    pieces = list(iter_random_weights(small(), "model.layers.0.mlp.up_proj.weight", tensor))
    assert [piece.size for piece in pieces] == [1_000, 1_000, 1_000, 333]


def test_the_same_shape_becomes_the_same_bytes(tmp_path: Path) -> None:
    first, second = (make_checkpoint(small(), tmp_path / name) for name in ("a", "b"))
    contents = [
        {path.name: path.read_bytes() for path in folder.glob("[!b]*")}
        for folder in (first, second)
    ]
    assert contents[0] == contents[1]
    query, key = (
        numbers(first / "model.safetensors", f"model.layers.{n}.self_attn.q_proj.weight")
        for n in (0, 1)
    )
    assert not np.array_equal(query, key)


def test_numbers_stay_near_one_through_many_layers() -> None:
    """Residuals, norms and products as a decoder has them: nothing may overflow, in float16 either."""
    shape = small(hidden_size=256)
    stream = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
    for layer in range(80):
        tensor = StoredTensor("BF16", (256, 256), 2 * 256 * 256)
        (drawn,) = iter_random_weights(shape, f"model.layers.{layer}.x.weight", tensor)
        weights = (drawn.astype(np.uint32) << 16).view(np.float32).reshape(256, 256)
        normed = stream / np.sqrt((stream**2).mean(axis=1, keepdims=True))
        stream = stream + normed @ weights.T
    assert np.isfinite(stream).all()
    assert 1 < stream.std() < 100


def test_weights_are_normal_and_norms_leave_everything_as_it_is(tmp_path: Path) -> None:
    stored = make_checkpoint(small("qwen2.5-0.5b"), tmp_path / "qwen") / "model.safetensors"
    embedding = numbers(stored, "model.embed_tokens.weight")
    assert embedding.std() == pytest.approx(1 / 8, rel=0.01)
    assert abs(embedding.mean()) < 0.001
    assert np.unique(embedding).size > 1_000
    assert (numbers(stored, "model.norm.weight") == 1).all()
    assert (numbers(stored, "model.layers.0.self_attn.q_proj.bias") == 0).all()
    gemma = make_checkpoint(small("gemma-3-1b"), tmp_path / "gemma") / "model.safetensors"
    assert (numbers(gemma, "model.layers.1.self_attn.k_norm.weight") == 0).all()  # it adds one


@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-72b", "gemma-3-4b"])
def test_every_token_of_a_vocabulary_is_a_word(name: str) -> None:
    config = SHAPES[name].config
    tokenizer = build_tokenizer(config)["tokenizer.json"]
    vocabulary = tokenizer["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(config["vocab_size"]))
    specials = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    assert tuple(sorted(specials)) == SHAPES[name].facts.special_token_ids
    assert all(vocabulary[content] == token for token, content in specials.items())
    known = set(vocabulary)
    merges = tokenizer["model"]["merges"]
    assert len(merges) == config["vocab_size"] - 256 - len(specials)
    assert all(left in known and right in known and left + right in known for left, right in merges)


def test_the_tokenizer_names_the_tokens_of_the_configuration() -> None:
    settings = build_tokenizer(small().config)["tokenizer_config.json"]
    assert (settings["bos_token"], settings["eos_token"]) == ("<|3|>", "<|7|>")


def test_an_interrupted_one_leaves_nothing_that_could_be_taken_for_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "_write_configuration", stop)
        with pytest.raises(KeyboardInterrupt):
            make_checkpoint(small(), tmp_path)
    assert list((tmp_path / "models").iterdir()) == []
    assert make_checkpoint(small(), tmp_path) == make_checkpoint(small(), tmp_path)


def test_too_small_a_disk_is_said_before_anything_is_written(tmp_path: Path) -> None:
    huge = small(vocab_size=10**9, hidden_size=10**6)
    with pytest.raises(
        ModelError,
        match=r"shape:small needs .* TiB, and .* free; free some space, or set BITBENCH_HOME",
    ):
        make_checkpoint(huge, tmp_path)
    assert list((tmp_path / "models").iterdir()) == []


def test_an_unknown_shape_names_the_nearest() -> None:
    with pytest.raises(
        ModelError,
        match=r"No shape is called shape:qwen3-4; did you mean `shape:qwen3-4b`\? there are",
    ):
        find_shape("shape:qwen3-4")


STUDY = """\
name: shaped
models: ["shape:qwen3-4b"]
recipes: [bf16, w8a8-rtn]
engines: [vllm]
workloads: [interactive]
quality: {windows: 2}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BITBENCH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_shape_is_planned_before_it_is_written(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("study.yaml").write_text(STUDY)
    answer = bitbench(capsys, "plan", "study.yaml")
    assert answer.exit_code == 0, answer.err
    assert "variant shape-qwen3-4b/bf16: 7.49 GiB of weights, not created" in answer.out
    assert "bitbench model get shape:qwen3-4b" in answer.out
    assert "bitbench env create transformers" not in answer.out  # nothing has to be converted
    assert not home.exists()


def test_its_quality_is_refused_in_one_sentence(home: Path) -> None:
    Path("study.yaml").write_text(STUDY)
    plan = plan_study(Path("study.yaml"), Workplace(home))
    assert len(plan.points) == 2
    assert not plan.quality
    assert {refusal.reason for refusal in plan.quality_refusals} == {
        "The weights of shape:qwen3-4b are random: it is for speed, memory and kernels, and has no quality."
    }


def test_the_quality_command_refuses_a_shape(
    known: Shape, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_checkpoint(known, home)
    answer = bitbench(capsys, "quality", format_shape_reference(known), "--recipes", "w8a8-rtn")
    assert answer.exit_code == ExitCode.UNAVAILABLE
    assert "The weights of shape:small are random" in answer.err
    assert not list(Path.cwd().glob("quality-*"))


def test_the_command_writes_it_and_says_what_it_is_for(
    known: Shape, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = bitbench(capsys, "model", "get", format_shape_reference(known))
    assert answer.exit_code == 0, answer.err
    assert (
        "Its weights are random: it is for speed, memory and kernels, not for quality."
        in answer.out
    )
    listed = bitbench(capsys, "model", "list").out
    assert "random weights in the shape of" in " ".join(listed.split())
    assert "shape:qwen3-4b" in listed
    found = library.resolve(format_shape_reference(known), home)
    assert (found.name, found.path) == ("shape-small", home / "models" / "shape-small")


def test_progress_counts_the_bytes_of_the_weights(known: Shape, home: Path) -> None:
    seen: list[tuple[int, int]] = []
    make_model_ready(
        format_shape_reference(known),
        home,
        on_step=print,
        on_progress=lambda done, total: seen.append((done, total)),
    )
    total = sum(tensor.size_bytes for tensor in known.tensors.values())
    assert seen[-1] == (total, total)

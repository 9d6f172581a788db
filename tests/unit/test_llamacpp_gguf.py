"""Making GGUF files, with tools that are shell scripts: what is asked of them, and what becomes of their answers."""

import json
import sys
from pathlib import Path

import pytest

from bitbench.errors import QuantizeError, RecipeError
from bitbench.quantize.gguf import GgufTools, make_gguf
from bitbench.quantize.workers.convert_to_gguf import splits_like_gpt2

# Stands in for the interpreter: called with -I WORKER CONVERTER CHECKPOINT TARGET.
CONVERT = 'echo "INFO:convert"; printf "Writing:  50%%|x\\rWriting: 100%%|x\\n"; echo bf16 > "$5"'
QUANTIZE = 'echo "[   1/   4] a"; echo "[   4/   4] b"; { cat "$1"; echo "$3"; } > "$2"'


class Tools:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.python = self._script("python", CONVERT)
        self.quantize(QUANTIZE)
        self.tools = GgufTools(folder / "llama-quantize", folder / "convert_hf_to_gguf.py")

    def convert(self, script: str) -> None:
        self._script("python", script)

    def quantize(self, script: str) -> None:
        self._script("llama-quantize", script)

    def _script(self, name: str, script: str) -> Path:
        path = self._folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    folder = tmp_path / "bin"
    folder.mkdir()
    return Tools(folder)


def make(tools: Tools, target: Path, type: str = "q4_0", said: list[str] | None = None) -> Path:
    on_progress = (said if said is not None else []).append
    checkpoint = Path("/models/small")
    return make_gguf(checkpoint, type, target, python=tools.python, tools=tools.tools, on_progress=on_progress)


def test_converts_then_quantizes_and_leaves_one_file(tools: Tools, tmp_path: Path) -> None:
    said: list[str] = []
    target = tmp_path / "out" / "model.gguf"
    assert make(tools, target, said=said) == target
    assert target.read_text() == "bf16\nQ4_0\n"
    assert list(target.parent.iterdir()) == [target]
    assert said == [
        "converting to GGUF, 50 %",
        "converting to GGUF, 100 %",
        "quantizing to q4_0, 25 %",
        "quantizing to q4_0, 100 %",
    ]


def test_bf16_is_only_converted(tools: Tools, tmp_path: Path) -> None:
    tools.quantize("exit 1")
    assert make(tools, tmp_path / "model.gguf", "bf16").read_text() == "bf16\n"


def test_an_unknown_type_names_the_known_ones(tools: Tools, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"'q3_x' is not a GGUF type.*q8_0, q6_k, q5_k_m, q4_k_m, q4_0"):
        make(tools, tmp_path / "model.gguf", "q3_x")


def test_a_failed_conversion_is_told_in_the_converters_words(tools: Tools, tmp_path: Path) -> None:
    tools.convert("echo \"NotImplementedError: Architecture 'BertModel' not supported!\" >&2; exit 1")
    with pytest.raises(QuantizeError, match=r"small could not be converted to GGUF: .*'BertModel' not supported"):
        make(tools, tmp_path / "out" / "model.gguf")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_failed_quantization_is_told_in_the_tools_words(tools: Tools, tmp_path: Path) -> None:
    tools.quantize('echo half > "$2"; echo "llama_model_quantize: failed to quantize: No space left"; echo; exit 1')
    with pytest.raises(QuantizeError, match=r"small could not be quantized to q4_0: .*No space left"):
        make(tools, tmp_path / "out" / "model.gguf")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_tool_that_ends_well_without_a_result_failed(tools: Tools, tmp_path: Path) -> None:
    tools.quantize("exit 0")
    with pytest.raises(QuantizeError, match="exit code 0 and said nothing"):
        make(tools, tmp_path / "model.gguf")


def test_a_tool_that_is_killed_points_at_memory(tools: Tools, tmp_path: Path) -> None:
    tools.quantize("kill -9 $$")
    with pytest.raises(QuantizeError, match=r"signal 9.*memory"):
        make(tools, tmp_path / "model.gguf")


def test_a_missing_tool_is_named(tools: Tools, tmp_path: Path) -> None:
    tools.tools.quantize.unlink()
    with pytest.raises(QuantizeError, match=r"llama-quantize cannot be run \(No such file"):
        make(tools, tmp_path / "model.gguf")


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        ({"pre_tokenizer": {"type": "ByteLevel", "use_regex": True}}, True),
        ({"pre_tokenizer": {"type": "ByteLevel", "use_regex": False}}, False),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits"}]}}, False),
        ({"pre_tokenizer": {"type": "ByteLevel"}, "normalizer": {"type": "NFC"}}, False),
        ({"pre_tokenizer": None}, False),
    ],
)
def test_only_a_plain_byte_level_tokenizer_is_taken_for_gpt2(
    tokenizer: dict[str, object], expected: bool, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert splits_like_gpt2(tmp_path) is expected


# Stands in for llama.cpp's converter: writes down its arguments and what its tokenizer code would do.
CONVERTER = """
import sys
from pathlib import Path
from conversion.base import TextModel

class Model(TextModel):
    dir_model = Path(sys.argv[1])

def tried(method, *arguments):
    try:
        return method(*arguments)
    except Exception as error:
        return type(error).__name__

model = Model()
answers = [tried(model.get_vocab_base_pre, None), tried(model._create_vocab_sentencepiece)]
Path(sys.argv[3]).write_text(" ".join([*answers, sys.argv[1], *sys.argv[4:]]))
"""
CONVERSION = """
class TextModel:
    def get_vocab_base_pre(self, tokenizer):
        raise NotImplementedError
    def _create_vocab_sentencepiece(self):
        import a_package_that_is_not_there
"""


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer.json": '{"pre_tokenizer": {"type": "ByteLevel"}}'}, "gpt-2 FileNotFoundError"),
        ({"tokenizer.json": "{}", "tokenizer.model": ""}, "NotImplementedError ModuleNotFoundError"),
    ],
)
def test_the_worker_runs_the_converter_and_corrects_it(files: dict[str, str], expected: str, tmp_path: Path) -> None:
    converter = tmp_path / "llama.cpp" / "convert_hf_to_gguf.py"
    checkpoint = tmp_path / "small"
    (converter.parent / "conversion").mkdir(parents=True)
    converter.write_text(CONVERTER)
    (converter.parent / "conversion" / "base.py").write_text(CONVERSION)
    checkpoint.mkdir()
    for name, content in files.items():
        (checkpoint / name).write_text(content)
    tools = GgufTools(Path("unused"), converter)
    made = make_gguf(checkpoint, "bf16", tmp_path / "model.gguf", python=Path(sys.executable), tools=tools)
    assert made.read_text() == f"{expected} {checkpoint} --outtype bf16"

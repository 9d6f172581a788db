"""llm-compressor, in its own environment: a job file in, lines of JSON out, a compressed checkpoint on disk."""

import json
import os
import subprocess
import time
from pathlib import Path

from bitbench.core.base import Json
from bitbench.core.recipe import Step
from bitbench.errors import QuantizeError
from bitbench.quantize.manifest import WorkerFacts
from bitbench.quantize.work import OnProgress, Progress, Work

_WORKER = Path(__file__).parents[1] / "workers" / "llmcompressor_worker.py"
# Processor seconds of a step on SmolLM2-135M with 64 samples of 512 tokens; only their ratios are used.
_STEP_COST = {"smoothquant": 76.0, "sparsegpt": 128.0, "gptq": 134.0, "awq": 245.0, "quantize": 2.0}


def compress(work: Work, on_progress: OnProgress) -> WorkerFacts:
    """Runs the worker to its end. It dies with this process, even after `kill -9`."""
    job_file = _write_job(work)
    estimate = _Estimate(work.recipe.steps)
    last: Json = {}
    on_progress(Progress("loading the model"))
    with work.log_file.open("wb") as log:
        worker = subprocess.Popen(
            [work.python, "-I", _WORKER, job_file],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=work.folder,
            env=_environment(),
            pass_fds=(work.lock_fd,),
        )
    try:
        for line in worker.stdout or ():
            last = json.loads(line)
            if last["event"] == "part":
                on_progress(estimate.progress(last["step"], last["part"], last["parts"]))
            elif last["event"] == "stage":
                on_progress(Progress(last["name"]))
        exit_code = worker.wait()
    finally:
        worker.kill()
        worker.wait()
    if exit_code != 0 or last.get("event") != "done":
        raise QuantizeError(f"llm-compressor could not make {work.recipe.name}: {_cause(last, exit_code)}")
    return WorkerFacts.model_validate(last["facts"])


class _Estimate:
    """Time left, from the time that the parts so far took and what steps cost relative to each other."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self._names = [step.step for step in steps]
        self._costs = [_STEP_COST[name] for name in self._names]
        self._began: float | None = None

    def progress(self, step: int, part: int, parts: int) -> Progress:
        """The first event of all (part 0 of step 0) starts the clock: loading the model does not repeat."""
        if self._began is None:
            self._began = time.monotonic()
        done = sum(self._costs[:step]) + self._costs[step] * part / parts
        left = sum(self._costs) - done
        elapsed = time.monotonic() - self._began
        return Progress(self._names[step], part, parts, elapsed * left / done if done else None)


def _write_job(work: Work) -> Path:
    calibration_file = work.folder / "calibration.jsonl"
    if work.calibration is not None:
        calibration_file.write_text(work.calibration.as_jsonl(), encoding="utf-8")
    need = work.recipe.calibration
    job = {
        "parent": os.getpid(),
        "model": str(work.model),
        "checkpoint": str(work.checkpoint),
        "steps": [step.model_dump(mode="json") for step in work.recipe.steps],
        "calibration": None if work.calibration is None else str(calibration_file),
        "samples": need.samples,
        "tokens": need.tokens,
        "seed": work.seed,
    }
    job_file = work.folder / "job.json"
    job_file.write_text(json.dumps(job), encoding="utf-8")
    return job_file


def _environment() -> dict[str, str]:
    """Ours without what would leak packages into another Python; nothing is asked of a hub."""
    ours = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "HF_TOKEN")}
    return ours | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def _cause(last: Json, exit_code: int) -> str:
    if last.get("event") == "failed":
        return str(last["cause"])
    if exit_code < 0:
        return (
            f"the worker was killed by signal {-exit_code}, most often for want of memory; use fewer or shorter samples"
        )
    return f"the worker ended with {exit_code}"

"""llm-compressor, in its own environment: a job file in, lines of JSON out, a compressed checkpoint on disk."""

import time
from pathlib import Path

from bitbench.quantize.backends.worker import run_worker
from bitbench.quantize.manifest import WorkerFacts
from bitbench.quantize.work import OnProgress, QuantizeProgress, Work
from bitbench.study.base import Json
from bitbench.study.recipe import Step
from bitbench.util.safe_files import SafeFolder

_WORKER = Path(__file__).parents[1] / "workers" / "llmcompressor_worker.py"
# Processor seconds of a step on SmolLM2-135M with 64 samples of 512 tokens; only their ratios are used. Those of
# spinquant and autoround were not measured: no text is looked at, and 200 passes over each block.
_STEP_COST = {
    "smoothquant": 76.0,
    "sparsegpt": 128.0,
    "gptq": 134.0,
    "awq": 245.0,
    "spinquant": 5.0,
    "autoround": 2000.0,
    "quantize": 2.0,
}


def compress(work: Work, on_progress: OnProgress) -> WorkerFacts:
    estimate = _StepsEstimate(work.recipe.steps)

    def show(event: Json) -> None:
        if event["event"] == "part":
            on_progress(estimate.progress(event["step"], event["part"], event["parts"]))
        elif event["event"] == "stage":
            on_progress(QuantizeProgress(event["name"]))

    on_progress(QuantizeProgress("loading the model"))
    return run_worker(_WORKER, work, _job(work), maker="llm-compressor", on_event=show)


class _StepsEstimate:
    """Time left, from the time that the parts so far took and what steps cost relative to each other."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self._names = [step.step for step in steps]
        self._costs = [_STEP_COST[name] for name in self._names]
        self._began: float | None = None

    def progress(self, step: int, part: int, parts: int) -> QuantizeProgress:
        """The first event of all (part 0 of step 0) starts the clock: loading the model does not repeat."""
        if self._began is None:
            self._began = time.monotonic()
        done = sum(self._costs[:step]) + self._costs[step] * part / parts
        left = sum(self._costs) - done
        elapsed = time.monotonic() - self._began
        return QuantizeProgress(self._names[step], part, parts, elapsed * left / done if done else None)


def _job(work: Work) -> dict[str, Json]:
    text, need = work.calibration, work.recipe.calibration
    calibration_file = None
    if text is not None:
        calibration_file = str(SafeFolder(work.folder).write("calibration.jsonl", text.as_jsonl()))
    return {
        "model": str(work.model),
        "checkpoint": str(work.checkpoint),
        "steps": [step.model_dump(mode="json") for step in work.recipe.steps],
        "by_file": work.recipe.by_file,
        "calibration": calibration_file,
        "samples": need.samples,
        "tokens": need.tokens,
        "seed": work.seed,
    }

"""Our own VPTQ quantizer, in the environment that was made for quantizing."""

import time
from pathlib import Path

from bitbench.features.vptq.options import VptqOptions
from bitbench.quantize.backends import Maker
from bitbench.quantize.backends.worker import run_worker
from bitbench.quantize.environment import QUANTIZE
from bitbench.quantize.manifest import WorkerFacts
from bitbench.quantize.work import OnProgress, QuantizeProgress, Work
from bitbench.study.base import Json
from bitbench.util.errors import QuantizeError
from bitbench.util.safe_files import SafeFolder

_WORKER = Path(__file__).with_name("workers") / "vptq_worker.py"


def compress(work: Work, on_progress: OnProgress) -> WorkerFacts:
    """Resumes after the layers that an earlier try finished."""
    estimate = _WeightsEstimate()

    def show(event: Json) -> None:
        if event["event"] == "part":
            on_progress(QuantizeProgress("vptq", event["part"], event["parts"], estimate.remaining_s(event["share"])))
        elif event["event"] == "stage":
            on_progress(QuantizeProgress(event["name"]))

    on_progress(QuantizeProgress("loading the model"))
    return run_worker(_WORKER, work, _job(work), maker="the VPTQ quantizer", on_event=show)


class _WeightsEstimate:
    """Time left, from the share of the weights that was done since the first event."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None

    def remaining_s(self, share: float) -> float | None:
        if self._first is None:
            self._first = (time.monotonic(), share)
        began, share_before = self._first
        done = share - share_before
        return (time.monotonic() - began) * (1 - share) / done if done > 0 else None


def _job(work: Work) -> dict[str, Json]:
    options = VptqOptions.model_validate(work.recipe.options)
    if work.calibration is None:
        raise QuantizeError(f"{work.recipe.name} needs calibration text.")
    calibration_file = SafeFolder(work.folder).write("calibration.jsonl", work.calibration.as_jsonl())
    SafeFolder(work.kept.parent).make_folder(work.kept.name)
    settings = options.model_dump(mode="json", exclude={"ignore", "dampening"})
    return {
        "model": str(work.model),
        "checkpoint": str(work.checkpoint),
        "kept": str(work.kept),
        "settings": {**settings, "damping": options.dampening},
        "ignore": list(options.ignore),
        "calibration": str(calibration_file),
        "samples": work.recipe.calibration.samples,
        "tokens": work.recipe.calibration.tokens,
        "seed": work.seed,
    }


MAKER = Maker(
    environment=QUANTIZE.name,
    telling_packages=("numpy", "torch", "transformers"),
    compress=compress,
    s_per_million_parameters=4.2,
    options=VptqOptions,
)

"""bitbench's own side of VPTQ: what a recipe for `backend: vptq` says, its quantizer in the environment that was
made for quantizing, its data."""

import time
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from bitbench.quantize.backends import QUANTIZE, Maker, OnProgress, QuantizeProgress, Work, run_backend_worker
from bitbench.quantize.manifest import WorkerFacts
from bitbench.study.base import Fraction, Json
from bitbench.study.recipe import BackendOptions
from bitbench.util.errors import QuantizeError
from bitbench.util.files import SafeFolder

RECIPES = Path(__file__).with_name("recipes")
COMPATIBILITY = Path(__file__).with_name("compatibility.yaml")


class VptqOptions(BackendOptions):
    """Vectors of weights become indices into codebooks, one of which holds what the other leaves over."""

    needs_calibration: ClassVar[bool] = True

    main: int = Field(default=4096, ge=2, le=65536, description="entries of the main codebook, a power of two")
    residual: int = Field(default=256, ge=0, le=65536, description="entries of the residual codebook; 0: none")
    vector: Literal[4, 8, 16] = Field(default=8, description="weights per vector; the CPU kernel reads 8")
    normalize: bool = Field(default=False, description="scale and offset per column; costs 32 bits per column")
    outliers: Fraction = Field(default=0.0, ge=0, lt=0.5, description="share of the columns with a codebook of its own")
    outlier_entries: int = Field(default=4096, ge=2, le=65536)
    outlier_vector: Literal[2, 4, 8] = 4
    iterations: int = Field(default=8, ge=1, le=1000, description="iterations of k-means; more take longer")
    rounds: int = Field(default=2, ge=0, le=100, description="of refitting codebooks and improving indices in turn")
    dampening: Fraction = Field(default=0.01, gt=0, lt=1, description="raise it when a layer cannot be solved")
    ignore: tuple[str, ...] = Field(default=("lm_head",), description="layers to skip: a name, or re: and a pattern")

    @field_validator("main", "residual", "outlier_entries")
    @classmethod
    def _fills_its_index(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError("a codebook has 256, 4096 or another power of two of entries")
        return value

    @property
    def ignored(self) -> tuple[str, ...]:
        return self.ignore


_WORKER = Path(__file__).with_name("workers") / "vptq_worker.py"


def _compress_vptq(work: Work, on_progress: OnProgress) -> WorkerFacts:
    """Resumes after the layers that an earlier try finished."""
    estimate = _WeightsEstimate()

    def show(event: Json) -> None:
        if event["event"] == "part":
            on_progress(QuantizeProgress("vptq", event["part"], event["parts"], estimate.remaining_s(event["share"])))
        elif event["event"] == "stage":
            on_progress(QuantizeProgress(event["name"]))

    on_progress(QuantizeProgress("loading the model"))
    return run_backend_worker(_WORKER, work, _job(work), maker="the VPTQ quantizer", on_event=show)


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
    compress=_compress_vptq,
    s_per_million_parameters=4.2,
    options=VptqOptions,
)

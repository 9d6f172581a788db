"""What a backend is given, and what it says while it works."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bitbench.quantize.calibration import CalibrationText
from bitbench.study.recipe import Recipe


@dataclass(frozen=True)
class Work:
    """One variant to be made in `folder`, its checkpoint in `checkpoint` below it."""

    model: Path
    recipe: Recipe
    calibration: CalibrationText | None
    seed: int
    folder: Path
    python: Path  # interpreter of the backend's environment
    lock_fd: int  # inherited by what the backend starts: while a worker lives, the variant stays locked
    kept: Path  # a folder that a backend may make; it outlives an interruption, and goes when the variant is there
    origin: Path | None = None  # the checkpoint that its maker starts from; None: not created yet, or it needs none

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def log_file(self) -> Path:
        return self.folder / "quantize.log"


@dataclass(frozen=True)
class QuantizeProgress:
    """`part` of `parts` of a step is done. `remaining_s` is None before anything was measured."""

    step: str
    part: int = 0
    parts: int | None = None
    remaining_s: float | None = None
    counted: str = "layer"  # what a part is

    @property
    def place(self) -> str:
        return f"{self.step}, {self.counted} {self.part} of {self.parts}" if self.parts else self.step


OnProgress = Callable[[QuantizeProgress], None]

"""What a recipe for `backend: vptq` says."""

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from bitbench.study.base import Fraction
from bitbench.study.recipe import BackendOptions


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

"""Kernel tables and operator profiles as others publish them: figures without the raw values they rest on."""

from pydantic import Field

from bitbench.records.profile import Operator
from bitbench.study.base import Record
from bitbench.study.imported import ImportSource

PUBLISHED_FORMAT = 1  # of published/*.json; 1: first published form


class PublishedKernel(Record):
    """One row: `seconds` by the kernel's column, `ratio` as it is printed."""

    batch: int
    in_features: int
    out_features: int
    labels: dict[str, int] = Field(default_factory=dict)
    seconds: dict[str, float] = Field(default_factory=dict)
    ratio: float | None = None


class PublishedKernels(Record):
    format: int = PUBLISHED_FORMAT
    source: ImportSource
    rows: tuple[PublishedKernel, ...]


class PublishedProfile(Record):
    """`self_cpu_s` and `self_device_s` are the totals that stand below the table."""

    format: int = PUBLISHED_FORMAT
    source: ImportSource
    device: str | None
    operators: tuple[Operator, ...]
    self_cpu_s: float | None = None
    self_device_s: float | None = None

"""What is sent to other tools, and which tools there are."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from bitbench.util.errors import BitbenchError


class ExportError(BitbenchError):
    """Another tool did not take a study's figures, or its package is missing."""


class Target(StrEnum):
    """As `bitbench export --to` spells it."""

    PROMETHEUS = "prometheus"
    OTEL = "otel"
    MLFLOW = "mlflow"
    WANDB = "wandb"


@dataclass(frozen=True)
class ExportedFigure:
    """In base units. `low` and `high` bound the interval; None where it is unknown or open."""

    name: str  # as `study.metrics` spells it, without a unit: "ttft_p99"
    unit: str
    meaning: str
    value: float
    low: float | None
    high: float | None

    def bounds(self) -> Iterator[tuple[str, float]]:
        """What tools without intervals get: the figure under its name, its limits under that and an ending."""
        yield "", self.value
        if self.low is not None:
            yield "_low", self.low
        if self.high is not None:
            yield "_high", self.high


@dataclass(frozen=True)
class ExportedPoint:
    id: str  # the same in each export of the same study: what was exported before is written over
    name: str
    labels: Mapping[str, str]  # variant, engine, workload
    figures: tuple[ExportedFigure, ...]
    facts: Mapping[str, str]  # of its config and its workload


@dataclass(frozen=True)
class ExportedStudy:
    name: str
    facts: Mapping[str, str]  # versions and machine
    points: tuple[ExportedPoint, ...] = ()

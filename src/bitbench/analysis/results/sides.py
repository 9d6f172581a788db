"""What is known of a config beside its figures, and of one phase of it; every part names the records it rests on."""

from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import EngineSummary
from bitbench.records.roof import Attainable
from bitbench.records.trial import KernelPath
from bitbench.study.base import Record
from bitbench.study.model_cost import StepCost
from bitbench.study.plan import Config


class Source(Record):
    """A file of the study folder, and which of its records; without ids: all of it."""

    file: str
    ids: tuple[str, ...] = ()


class PhaseSide(Record):
    """One config in one phase. `cost` is what its stored form asks for."""

    step: Estimate  # seconds
    cost: StepCost | None = None
    loaded_cost: StepCost | None = None  # of weights that were expanded while they were loaded; else None
    attainable: Attainable | None = None  # by `cost`; None where the machine's roof is not known

    @property
    def roof_share(self) -> float | None:
        return None if self.attainable is None else self.attainable.seconds / self.step.value


class Side(Record):
    """What a config is: how much it weighs, and which kernels its instances chose."""

    config: Config
    is_quantized: bool
    # As its recipe leaves it; of what is compressed at load: as loaded; of what computes in float32: in that type.
    stored_bytes: int | None
    loaded_bytes: int | None  # as the engine says; None where it does not
    kernels: tuple[str, ...]
    path: KernelPath | None  # of most of its layers
    is_expanded: bool  # it was loaded as dense weights
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = ()  # of the engine, about its own speed
    kv_bytes_per_token: int | None = None  # as the engine says; None where it does not
    engine: EngineSummary | None = None  # what it counted at this workload
    trials: Source
    instances: Source

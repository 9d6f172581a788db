"""Where studies are planned and measured: a home folder, and what engines compute on."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from bitbench.machine.gpus import survey_gpus
from bitbench.machine.host import collect_host_facts, host_processor_level
from bitbench.records.lock import HostFacts
from bitbench.study.environment import Device
from bitbench.study.hardware import Capability, Level


def default_home() -> Path:
    """Where environments and models are kept: $BITBENCH_HOME, or a folder in the user's cache."""
    if chosen := os.environ.get("BITBENCH_HOME"):
        return Path(chosen).expanduser().resolve()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "bitbench"


@dataclass(frozen=True)
class Workplace:
    """`asked_device`: what a person chose; None: a GPU where one can be used, else the CPU."""

    home: Path = field(default_factory=default_home)
    asked_device: Device | None = None

    @property
    def device(self) -> Device:
        """What engines compute on here."""
        return self.asked_device or ("cuda" if survey_gpus().is_usable else "cpu")

    @property
    def capability(self) -> Capability | None:
        """The least compute capability among the GPUs that engines see; None on a CPU, and where it is unknown."""
        return survey_gpus().capability if self.device == "cuda" else None

    @property
    def level(self) -> Level | None:
        """Of the processor, where it is what computes."""
        return host_processor_level() if self.device == "cpu" else None

    def host(self) -> HostFacts:
        """Without the GPUs of a machine where engines compute on the CPU: they change no figure."""
        facts = collect_host_facts()
        if self.device == "cuda":
            return facts
        return facts.model_copy(update={"accelerators": (), "cuda_device_order": None})

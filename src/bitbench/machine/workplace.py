"""The home folder and the device with which studies are planned and measured."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from bitbench.machine.gpus import survey_gpus
from bitbench.machine.host import collect_host_facts, find_processor_level
from bitbench.records.lock import HostFacts
from bitbench.study.environment import Device
from bitbench.study.hardware import Capability, Level


def get_default_home() -> Path:
    """Return the folder of environments and models.

    It is $BITBENCH_HOME, or else a folder in the user's cache.
    """
    chosen = os.environ.get("BITBENCH_HOME")
    if chosen:
        return Path(chosen).expanduser().resolve()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "bitbench"


@dataclass(frozen=True)
class Workplace:
    """A home folder and a device to compute on.

    `asked_device` is the user's choice. With None it is a GPU if one can be used, or else the CPU.
    """

    home: Path = field(default_factory=get_default_home)
    asked_device: Device | None = None

    @property
    def device(self) -> Device:
        """The device that engines compute on."""
        return self.asked_device or ("cuda" if survey_gpus().is_usable else "cpu")

    @property
    def capability(self) -> Capability | None:
        """The lowest compute capability of the GPUs that engines see.

        It is None on a CPU or if it is unknown.
        """
        if self.device != "cuda":
            return None
        return survey_gpus().capability

    @property
    def level(self) -> Level | None:
        """The level of the processor, or None if engines compute on a GPU."""
        if self.device != "cpu":
            return None
        return find_processor_level()

    def host(self) -> HostFacts:
        """Return the facts about this machine.

        They leave out its GPUs if engines compute on the CPU: then these change no measurement.
        """
        facts = collect_host_facts()
        if self.device == "cuda":
            return facts
        return facts.model_copy(update={"accelerators": (), "cuda_device_order": None})

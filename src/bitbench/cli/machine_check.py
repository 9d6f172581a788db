"""What this machine can do, and the command that adds what it cannot."""

import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bitbench.engines import registry
from bitbench.engines.environments.installed import list_environments
from bitbench.measure.compatibility import on_processor
from bitbench.measure.machine.gpus import GpuSurvey, survey_gpus
from bitbench.measure.machine.host import collect_host_facts, processor_level
from bitbench.measure.machine.rapl import energy_zones
from bitbench.measure.readiness import known_environments, main_versions
from bitbench.models import library
from bitbench.records.host import HostFacts
from bitbench.study.processor import Level


@dataclass(frozen=True)
class EngineState:
    """`environment` is None for an engine that needs none; `versions` is None where its environment is missing."""

    name: str
    environment: str | None
    versions: Mapping[str, str] | None
    on_this_processor: tuple[str, ...] = ()  # what instructions that it lacks mean for this engine

    @property
    def is_ready(self) -> bool:
        return self.environment is None or self.versions is not None

    @property
    def to_fix(self) -> str | None:
        """The command that installs it; None where it is ready."""
        return None if self.is_ready else f"bitbench env create {self.environment}"


@dataclass(frozen=True)
class Checkup:
    host: HostFacts
    level: Level | None  # of the processor; None: not known, or engines run on an accelerator
    home: Path
    free_bytes: int  # on the disk that holds the home folder
    has_native_part: bool
    engines: tuple[EngineState, ...]
    models: tuple[library.KnownModel, ...]
    reads_cpu_energy: bool = False  # by the processors' own counters
    gpu_problems: tuple[str, ...] = ()  # what keeps engines from computing on the GPUs; a sentence each


def examine(home: Path) -> Checkup:
    """Starts nothing and measures nothing; how steady the machine is, `measure.machine.noise.measure_noise` says."""
    made = {known.name: known for known in list_environments(home) if known.complete}
    known_here = known_environments()
    level = None if survey_gpus().is_usable else processor_level()
    engines = []
    for name, engine in registry.engines().items():
        environment = engine.environment
        versions = main_versions(made[environment], known_here) if environment in made else None
        engines.append(EngineState(name, environment, versions, tuple(on_processor(name, level))))
    return Checkup(
        host=collect_host_facts(),
        level=level,
        home=home,
        free_bytes=shutil.disk_usage(_existing_parent(home)).free,
        has_native_part=importlib.util.find_spec("bitbench._native") is not None,
        engines=tuple(engines),
        models=tuple(library.list_models(home)),
        reads_cpu_energy=bool(energy_zones()),
        gpu_problems=gpu_problems(survey_gpus()),
    )


def gpu_problems(found: GpuSurvey) -> tuple[str, ...]:
    """Kernels are compiled when an engine starts: Triton needs a C compiler and Python's headers for that."""
    problems = [found.problem] if found.problem else []
    if found.accelerators and not any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))):
        problems.append("No C compiler is on the PATH, which Triton needs; install gcc or clang.")
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if found.accelerators and not headers.exists():
        problems.append(f"{headers} is missing, which Triton needs; install Python's development files (python3-dev).")
    return tuple(problems)


def _existing_parent(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path

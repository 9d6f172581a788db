"""`bitbench doctor`: what this machine can run, and the commands that add the rest."""

import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from bitbench.cli.json_answers import end_with_json
from bitbench.cli.options import AsJson
from bitbench.cli.terminal import Terminal
from bitbench.engines import registry
from bitbench.engines.environments import installed_environments
from bitbench.machine.gpus import GpuSurvey, survey_gpus
from bitbench.machine.host import collect_host_facts, host_processor_level
from bitbench.machine.workplace import default_home
from bitbench.planning.quick_study import EXAMPLE
from bitbench.planning.readiness import known_environment_versions, known_environments
from bitbench.records.lock import HostFacts
from bitbench.reports.document.words import plural
from bitbench.study.base import Record
from bitbench.study.hardware import Level
from bitbench.util.errors import ExitCode
from bitbench.util.machine_faults import NATIVE_ADVICE
from bitbench.util.units import UNKNOWN, show_bytes

NO_NATIVE_PART = f"not installed, so nothing can be measured; {NATIVE_ADVICE}"


class DoctorEngine(Record):
    name: str
    is_ready: bool
    versions: dict[str, str]
    to_fix: str | None  # the command that installs it


class DoctorAnswer(Record):
    host: HostFacts
    level: Level | None  # of the processor; null: not known, or engines run on an accelerator
    home: str
    free_bytes: int
    has_native_part: bool
    gpu_problems: tuple[str, ...] = ()  # what keeps engines from computing on the GPUs
    engines: tuple[DoctorEngine, ...]


def doctor(as_json: AsJson = False) -> None:
    """Show what this machine can run, and what is missing."""
    console, found = Terminal(), _doctor_answer(default_home())
    if as_json:
        end_with_json("doctor", found, ExitCode.DONE)
    console.print(_host_table(found))
    # Below the table, so that a path is never broken: as wide as its longest label.
    console.print(
        f" {'home':<11}  {found.home} ({show_bytes(found.free_bytes)} free)", soft_wrap=True
    )
    console.print()
    console.print(_engine_lines(found.engines), soft_wrap=True)
    console.print()
    console.print(
        Text.assemble(("Next", "bold"), f"  {EXAMPLE}: asks before it creates what is missing"),
        soft_wrap=True,
    )


def _doctor_answer(home: Path) -> DoctorAnswer:
    """Return what this machine has. It starts nothing and measures nothing."""
    made = {known.name: known for known in installed_environments(home) if known.complete}
    known_here = known_environments()
    level = None if survey_gpus().is_usable else host_processor_level()
    engines = []
    for name, engine in registry.engines().items():
        environment = engine.environment
        is_ready = environment is None or environment in made
        engines.append(
            DoctorEngine(
                name=name,
                is_ready=is_ready,
                versions=known_environment_versions(made[environment], known_here)
                if environment in made
                else {},
                to_fix=None if is_ready else f"bitbench env create {environment}",
            )
        )
    return DoctorAnswer(
        host=collect_host_facts(),
        level=level,
        home=str(home),
        free_bytes=shutil.disk_usage(_existing_parent(home)).free,
        has_native_part=importlib.util.find_spec("bitbench._native") is not None,
        engines=tuple(engines),
        gpu_problems=doctor_gpu_problems(survey_gpus()),
    )


def doctor_gpu_problems(found: GpuSurvey) -> tuple[str, ...]:
    """Kernels are compiled when an engine starts: Triton needs a C compiler and Python's headers for that."""
    problems = [found.problem] if found.problem else []
    if found.accelerators and not any(
        map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))
    ):
        problems.append("No C compiler is on the PATH, which Triton needs; install gcc or clang.")
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if found.accelerators and not headers.exists():
        problems.append(
            f"{headers} is missing, which Triton needs; install Python's development files (python3-dev)."
        )
    return tuple(problems)


def _existing_parent(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _host_table(found: DoctorAnswer) -> Table:
    host = found.host
    table = Table(
        box=None, show_header=False, title="This machine", title_justify="left", title_style="bold"
    )
    table.add_row("processor", doctor_processor_text(host))
    table.add_row("features", " ".join(host.cpu_flags) or UNKNOWN)
    table.add_row("level", found.level.shown if found.level else UNKNOWN)
    table.add_row("memory", show_bytes(host.memory_bytes))
    kernel = f"kernel {host.kernel}" if host.kernel else ""
    table.add_row(
        "system", ", ".join(part for part in (host.os, kernel, f"Python {host.python}") if part)
    )
    table.add_row("governor", host.governor or "unknown (virtual machines often hide it)")
    names = []
    for device in host.accelerators:
        capability = f", compute capability {device.capability}" if device.capability else ""
        names.append(f"{device.name} ({show_bytes(device.memory_bytes)}{capability})")
    table.add_row("accelerator", ", ".join(names) or "none: engines run on the CPU")
    for problem in found.gpu_problems:
        table.add_row("", Text(problem, "yellow"))
    table.add_row("native part", "installed" if found.has_native_part else NO_NATIVE_PART)
    return table


def doctor_processor_text(host: HostFacts) -> str:
    """Not every system names it: Linux on Arm has no model name."""
    counts = [("core", host.cores), ("usable thread", host.threads)]
    known = [plural(count, noun) for noun, count in counts if count is not None]
    return ", ".join([host.cpu_model or UNKNOWN, *known])


def _engine_lines(engines: Sequence[DoctorEngine]) -> Text:
    """A line each, so that a command stays whole where the terminal is narrow."""
    lines = [Text("Engines", "bold")]
    width = max((len(engine.name) for engine in engines), default=0)
    for engine in engines:
        shown = ", ".join(f"{package} {version}" for package, version in engine.versions.items())
        ready = Text.assemble(("ready", "green"), f"  {shown or 'needs no environment'}")
        state = (
            ready if engine.is_ready else Text.assemble(("missing", "yellow"), f": {engine.to_fix}")
        )
        lines.append(Text.assemble(f"  {engine.name:<{width}}  ", state))
    return Text("\n").join(lines)

"""`bitbench doctor`: the engines that this machine can run, and the commands that add the
others."""

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
from bitbench.engines.environments import list_environments
from bitbench.machine.gpus import GpuSurvey, survey_gpus
from bitbench.machine.host import collect_host_facts, find_processor_level
from bitbench.machine.workplace import get_default_home
from bitbench.planning.quick_study import EXAMPLE
from bitbench.planning.readiness import collect_environments, list_main_versions
from bitbench.records.lock import HostFacts
from bitbench.reports.document.words import format_count
from bitbench.study.base import Record
from bitbench.study.hardware import Level
from bitbench.util.errors import ExitCode
from bitbench.util.machine_faults import NATIVE_ADVICE
from bitbench.util.units import UNKNOWN, show_bytes

NO_NATIVE_PART = f"not installed, so nothing can be measured; {NATIVE_ADVICE}"


class DoctorEngine(Record):
    """An engine and the state of its environment."""

    name: str
    is_ready: bool
    versions: dict[str, str]
    to_fix: str | None  # the command that installs it


class DoctorAnswer(Record):
    """The answer of `bitbench doctor --json`."""

    host: HostFacts
    level: Level | None  # of the processor, null if unknown, or if engines run on an accelerator
    home: str
    free_bytes: int
    has_native_part: bool
    gpu_problems: tuple[str, ...] = ()  # reasons why engines cannot compute on the GPUs
    engines: tuple[DoctorEngine, ...]


def doctor(as_json: AsJson = False) -> None:
    """Show what this machine can run, and what is missing."""
    console = Terminal()
    answer = _collect_answer(get_default_home())
    if as_json:
        end_with_json("doctor", answer, ExitCode.DONE)
    console.print(_build_host_table(answer))
    # Below the table, so that a path is never broken. It is as wide as the longest label.
    free = show_bytes(answer.free_bytes)
    console.print(f" {'home':<11}  {answer.home} ({free} free)", soft_wrap=True)
    console.print()
    console.print(_format_engine_lines(answer.engines), soft_wrap=True)
    console.print()
    console.print(
        Text.assemble(("Next", "bold"), f"  {EXAMPLE}: asks before it creates what is missing"),
        soft_wrap=True,
    )


def _collect_answer(home: Path) -> DoctorAnswer:
    """Return the state of this machine. It starts nothing and measures nothing."""
    installed = {item.name: item for item in list_environments(home) if item.complete}
    environments = collect_environments()
    level = None if survey_gpus().is_usable else find_processor_level()
    engines: list[DoctorEngine] = []
    for name, engine in registry.engines().items():
        environment = engine.environment
        is_ready = environment is None or environment in installed
        versions: dict[str, str] = {}
        if environment in installed:
            versions = list_main_versions(installed[environment], environments)
        to_fix = None if is_ready else f"bitbench env create {environment}"
        engines.append(DoctorEngine(name=name, is_ready=is_ready, versions=versions, to_fix=to_fix))
    return DoctorAnswer(
        host=collect_host_facts(),
        level=level,
        home=str(home),
        free_bytes=shutil.disk_usage(_find_existing_parent(home)).free,
        has_native_part=importlib.util.find_spec("bitbench._native") is not None,
        engines=tuple(engines),
        gpu_problems=list_gpu_problems(survey_gpus()),
    )


def list_gpu_problems(survey: GpuSurvey) -> tuple[str, ...]:
    """Return the reasons why engines cannot compute on the GPUs. Triton compiles kernels when an
    engine starts, and needs a C compiler and Python's headers."""
    problems = [survey.problem] if survey.problem else []
    if not survey.accelerators:
        return tuple(problems)
    compilers = (os.environ.get("CC", "cc"), "gcc", "clang")
    if not any(map(shutil.which, compilers)):
        problems.append("No C compiler is on the PATH, which Triton needs; install gcc or clang.")
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if not headers.exists():
        problems.append(
            f"{headers} is missing, which Triton needs; "
            "install Python's development files (python3-dev)."
        )
    return tuple(problems)


def _find_existing_parent(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _build_host_table(answer: DoctorAnswer) -> Table:
    host = answer.host
    table = Table(
        box=None, show_header=False, title="This machine", title_justify="left", title_style="bold"
    )
    table.add_row("processor", describe_processor(host))
    table.add_row("features", " ".join(host.cpu_flags) or UNKNOWN)
    table.add_row("level", answer.level.shown if answer.level else UNKNOWN)
    table.add_row("memory", show_bytes(host.memory_bytes))
    kernel = f"kernel {host.kernel}" if host.kernel else ""
    system = (host.os, kernel, f"Python {host.python}")
    table.add_row("system", ", ".join(part for part in system if part))
    table.add_row("governor", host.governor or "unknown (virtual machines often hide it)")
    names = []
    for device in host.accelerators:
        capability = f", compute capability {device.capability}" if device.capability else ""
        names.append(f"{device.name} ({show_bytes(device.memory_bytes)}{capability})")
    table.add_row("accelerator", ", ".join(names) or "none: engines run on the CPU")
    for problem in answer.gpu_problems:
        table.add_row("", Text(problem, "yellow"))
    table.add_row("native part", "installed" if answer.has_native_part else NO_NATIVE_PART)
    return table


def describe_processor(host: HostFacts) -> str:
    """Return the processor's name and counts. Linux on Arm has no model name."""
    parts = [host.cpu_model or UNKNOWN]
    for noun, count in (("core", host.cores), ("usable thread", host.threads)):
        if count is not None:
            parts.append(format_count(count, noun))
    return ", ".join(parts)


def _format_engine_lines(engines: Sequence[DoctorEngine]) -> Text:
    """Return a line per engine rather than a table, so that commands stay whole in a narrow
    terminal."""
    lines = [Text("Engines", "bold")]
    width = max((len(engine.name) for engine in engines), default=0)
    for engine in engines:
        if engine.is_ready:
            versions = ", ".join(f"{name} {number}" for name, number in engine.versions.items())
            state = Text.assemble(("ready", "green"), f"  {versions or 'needs no environment'}")
        else:
            state = Text.assemble(("missing", "yellow"), f": {engine.to_fix}")
        lines.append(Text.assemble(f"  {engine.name:<{width}}  ", state))
    return Text("\n").join(lines)

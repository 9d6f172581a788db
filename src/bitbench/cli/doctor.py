"""`bitbench doctor`: what this machine can run, and the commands that add the rest."""

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rich.table import Table
from rich.text import Text

from bitbench.cli.choices import Described
from bitbench.cli.json_answers import doctor_answer
from bitbench.cli.machine_check import Checkup, EngineState, examine
from bitbench.cli.options import end_with_json
from bitbench.cli.terminal import Terminal
from bitbench.measure.machine.noise import measure_noise
from bitbench.measure.quick_study import EXAMPLE
from bitbench.models import library
from bitbench.records.host import Accelerator, HostFacts, HostNoise
from bitbench.reports.document.words import plural
from bitbench.util.exit_codes import ExitCode
from bitbench.util.units import UNKNOWN, show_bytes, show_percent

# A difference smaller than the spread of a fixed piece of work needs many trials to be seen.
NOISY_SPREAD = 0.10
NO_NATIVE_PART = (
    "not installed: no null engine, no VPTQ kernel, and `bitbench load` carries fewer streams; "
    "install bitbench's wheel, or g++ or clang++ and bitbench again"
)
NO_ENERGY = "unknown: no counter in /sys/class/powercap that may be read (virtual machines have none; root may)"


def print_doctor(home: Path, *, measure: bool) -> NoReturn:
    """As JSON."""
    end_with_json(Described.DOCTOR, doctor_answer(examine(home), measure_noise() if measure else None), ExitCode.DONE)


def show_doctor(home: Path, *, measure: bool) -> None:
    console = Terminal()
    found = examine(home)
    console.print(_host_table(found))
    console.print(f"  home      {home} ({show_bytes(found.free_bytes)} free)", soft_wrap=True)
    console.print()
    console.print(_engine_lines(found.engines), soft_wrap=True)
    if means := [engine for engine in found.engines if engine.on_this_processor]:
        console.print()
        console.print(_processor_lines(means), soft_wrap=True)
    console.print()
    console.print(_model_lines(found.models), soft_wrap=True)
    if measure:
        console.print()
        with console.status("measuring this machine's noise"):
            noise = measure_noise()
        console.print(noise_lines(noise), soft_wrap=True)
    console.print()
    console.print(_next_line(), soft_wrap=True)


def _host_table(found: Checkup) -> Table:
    host = found.host
    table = Table(box=None, show_header=False, title="This machine", title_justify="left", title_style="bold")
    table.add_row("processor", processor_words(host))
    table.add_row("features", " ".join(host.cpu_flags) or UNKNOWN)
    table.add_row("level", found.level.shown if found.level else UNKNOWN)
    table.add_row("memory", show_bytes(host.memory_bytes))
    kernel = f"kernel {host.kernel}" if host.kernel else ""
    table.add_row("system", ", ".join(part for part in (host.os, kernel, f"Python {host.python}") if part))
    table.add_row("governor", host.governor or "unknown (virtual machines often hide it)")
    names = ", ".join(f"{device.name} ({_accelerator(device)})" for device in host.accelerators)
    table.add_row("accelerator", names or "none: engines run on the CPU")
    for problem in found.gpu_problems:
        table.add_row("", Text(problem, "yellow"))
    table.add_row("CPU energy", "readable" if found.reads_cpu_energy else NO_ENERGY)
    table.add_row("native part", "installed" if found.has_native_part else NO_NATIVE_PART)
    return table


def processor_words(host: HostFacts) -> str:
    """Not every system names it: Linux on Arm has no model name."""
    counts = [("core", host.cores), ("usable thread", host.threads)]
    known = [plural(count, noun) for noun, count in counts if count is not None]
    return ", ".join([host.cpu_model or UNKNOWN, *known])


def _accelerator(device: Accelerator) -> str:
    capability = f", compute capability {device.capability}" if device.capability else ""
    return f"{show_bytes(device.memory_bytes)}{capability}"


def _engine_lines(engines: Sequence[EngineState]) -> Text:
    """A line each, so that a command stays whole where the terminal is narrow."""
    lines = [Text("Engines", "bold")]
    width = max((len(engine.name) for engine in engines), default=0)
    for engine in engines:
        shown = ", ".join(f"{package} {version}" for package, version in (engine.versions or {}).items())
        ready = Text.assemble(("ready", "green"), f"  {shown or 'needs no environment'}")
        state = ready if engine.is_ready else Text.assemble(("missing", "yellow"), f": {engine.to_fix}")
        lines.append(Text.assemble(f"  {engine.name:<{width}}  ", state))
    return Text("\n").join(lines)


def _processor_lines(engines: Sequence[EngineState]) -> Text:
    lines = [Text("What this processor lacks means", "bold")]
    for engine in engines:
        lines += [Text(f"  {engine.name}"), *(Text(f"    {meaning}") for meaning in engine.on_this_processor)]
    return Text("\n").join(lines)


def _model_lines(models: Sequence[library.KnownModel]) -> Text:
    lines = [Text("Models", "bold")]
    for model in models:
        ready = Text.assemble(("ready", "green"), f" at {model.path}")
        state = ready if model.path else Text(f"not downloaded: bitbench model get {model.name}")
        lines.append(Text.assemble(f"  {model.name}  ", state))
    return Text("\n").join(lines)


def _next_line() -> Text:
    """What works now, whatever is installed."""
    return Text.assemble(("Next", "bold"), f"  {EXAMPLE}: asks before it creates what is missing")


def noise_lines(noise: HostNoise) -> Text:
    worst = max(noise.compute_spread, noise.memory_spread)
    advice = (
        "noisy: expect wide intervals, close what else runs here, and give the study more starts"
        if worst > NOISY_SPREAD
        else "steady"
    )
    return Text.assemble(
        ("Noise", "bold"),
        f" over {noise.repetitions} repetitions of the same work: {advice}\n"
        f"  computing  {show_percent(noise.compute_spread)} between the 10th and 90th percentile, "
        f"slowest {show_percent(noise.compute_worst, signed=True)}\n"
        f"  memory     {show_percent(noise.memory_spread)} between the 10th and 90th percentile, "
        f"slowest {show_percent(noise.memory_worst, signed=True)}",
    )

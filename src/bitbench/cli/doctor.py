"""`bitbench doctor`: what this machine can do, and what would mend the rest."""

import importlib.util
import shutil

from rich.console import Console
from rich.table import Table

from bitbench import environments
from bitbench.core.recorded.host import HostFacts, HostNoise
from bitbench.engines import registry
from bitbench.ground.units import show_bytes, show_percent
from bitbench.lab.environments import known_environments, main_versions
from bitbench.lab.study import Lab
from bitbench.models import library
from bitbench.probes.host import collect_host_facts
from bitbench.probes.noise import measure_noise

# A difference smaller than the spread of a fixed piece of work needs many trials to be seen.
NOISY_SPREAD = 0.10


def show_doctor(lab: Lab, *, measure: bool) -> None:
    console = Console(highlight=False)
    host = collect_host_facts()
    console.print(_host_table(host))
    free = shutil.disk_usage(_existing_parent(lab)).free
    console.print(f"  home      {lab.home} ({show_bytes(free)} free)", soft_wrap=True)
    console.print()
    console.print(_engine_table(lab))
    console.print()
    console.print(_model_lines(lab), soft_wrap=True)
    if measure:
        console.print()
        with console.status("measuring how much a fixed piece of work varies here"):
            noise = measure_noise()
        console.print(noise_lines(noise), soft_wrap=True)


def _host_table(host: HostFacts) -> Table:
    table = Table(box=None, show_header=False, title="This machine", title_justify="left", title_style="bold")
    table.add_row("processor", f"{host.cpu_model}, {host.cores} cores, {host.threads} threads usable")
    table.add_row("can do", " ".join(host.cpu_flags) or "–")
    table.add_row("memory", show_bytes(host.memory_bytes))
    table.add_row("system", f"{host.os}, kernel {host.kernel}, Python {host.python}")
    table.add_row("governor", host.governor or "not told (a virtual machine often hides it)")
    names = ", ".join(f"{device.name} ({show_bytes(device.memory_bytes)})" for device in host.accelerators)
    table.add_row("accelerator", names or "none: engines run on the CPU")
    table.add_row("native part", _native_part())
    return table


def _native_part() -> str:
    if importlib.util.find_spec("bitbench._native") is not None:
        return "installed"
    return (
        "not installed: no null engine, no VPTQ kernel, and `bitbench load` carries fewer streams; "
        "install bitbench's wheel, or g++ or clang++ and bitbench again"
    )


def _engine_table(lab: Lab) -> Table:
    table = Table(
        "engine",
        "state",
        "version",
        "to mend it",
        box=None,
        title="Engines",
        title_justify="left",
        title_style="bold",
        header_style="dim",
    )
    made = {known.name: known for known in environments.list_environments(lab.home) if known.complete}
    known_here = known_environments()
    for name, engine in registry.engines().items():
        environment = engine.environment
        if environment is None:
            table.add_row(name, "[green]ready[/]", "needs no environment", "")
        elif environment in made:
            versions = main_versions(made[environment], known_here)
            shown = ", ".join(f"{package} {version}" for package, version in versions.items())
            table.add_row(name, "[green]ready[/]", shown, "")
        else:
            table.add_row(name, "[yellow]not there[/]", "–", f"bitbench env create {environment}")
    return table


def _model_lines(lab: Lab) -> str:
    lines = ["[bold]Models[/]"]
    for model in library.list_models(lab.home):
        state = f"[green]ready[/] at {model.path}" if model.path else f"not there: bitbench model get {model.name}"
        lines.append(f"  {model.name}  {state}")
    return "\n".join(lines)


def noise_lines(noise: HostNoise) -> str:
    worst = max(noise.compute_spread, noise.memory_spread)
    advice = (
        "noisy: expect wide intervals, close what else runs here, and give the study more instances"
        if worst > NOISY_SPREAD
        else "steady"
    )
    return (
        f"[bold]Noise[/] over {noise.repetitions} repetitions of the same work: {advice}\n"
        f"  computing  {show_percent(noise.compute_spread)} between the 10th and 90th percentile, "
        f"slowest {show_percent(noise.compute_worst, signed=True)}\n"
        f"  memory     {show_percent(noise.memory_spread)} between the 10th and 90th percentile, "
        f"slowest {show_percent(noise.memory_worst, signed=True)}"
    )


def _existing_parent(lab: Lab) -> str:
    path = lab.home
    while not path.exists():
        path = path.parent
    return str(path)

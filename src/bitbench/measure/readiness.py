"""Which environments and models there are, and the commands that bring what a study lacks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bitbench.engines import registry
from bitbench.engines.environments.installed import InstalledEnvironment, list_environments, python_of
from bitbench.feature import loaded
from bitbench.models.catalog import CATALOG
from bitbench.models.fetch import ENVIRONMENT
from bitbench.quality.environment import LMEVAL
from bitbench.quality.tasks import ENVIRONMENT as TASKS
from bitbench.quantize.environment import QUANTIZE
from bitbench.study.environment import Device, Environment
from bitbench.study.plan import Plan
from bitbench.util.errors import EngineEnvironmentError, NotReadyError


@dataclass(frozen=True)
class Readiness:
    environments: Mapping[str, str | None]  # what is wrong with each; None: it is installed
    missing_models: tuple[str, ...]
    asked_for: Device | None = None  # what a person chose; None: what this machine would choose
    making_s: float = 0.0  # about: to create the variants that are missing, which `bitbench run` does

    @property
    def commands(self) -> tuple[str, ...]:
        """In an order in which they work: models of the catalog are converted in an environment."""
        names = [name for name, problem in self.environments.items() if problem is not None]
        device = f" --device {self.asked_for}" if self.asked_for else ""
        return (
            *(f"bitbench env create {name}{device}" for name in names),
            *(f"bitbench model get {name}" for name in self.missing_models),
        )

    def require(self) -> None:
        """Raises NotReadyError with every command that is needed, before anything starts."""
        if self.commands:
            raise NotReadyError(f"this study cannot run yet; first: {' && '.join(self.commands)}")


def readiness(
    needed: Iterable[str],
    missing_models: Iterable[str],
    home: Path,
    *,
    device: Device | None = None,
    asked_for: Device | None = None,
    making_s: float = 0.0,
) -> Readiness:
    """`needed`: environments of the study's engines, of what makes its variants, and of its tasks. `device`: what the
    engines compute on, for which theirs must have been made; `asked_for`: the same where a person chose it."""
    models = tuple(missing_models)
    names = sorted({*needed, *(ENVIRONMENT for model in models if model in CATALOG)})  # it converts them
    problems = {name: _problem(name, home) or (device and _of_another_device(name, home, device)) for name in names}
    return Readiness(problems, models, asked_for, making_s)


def _problem(name: str, home: Path) -> str | None:
    try:
        python_of(name, home)
    except EngineEnvironmentError as error:
        return str(error)
    return None


def _of_another_device(name: str, home: Path, device: Device) -> str | None:
    """Where an engine's was made from the lock of another device: there the engine would compute."""
    of_engines = {known.name: known for engine in registry.engines().values() if (known := engine.own_environment)}
    installed = next((found for found in list_environments(home) if found.name == name), None)
    if name not in of_engines or installed is None:
        return None
    locks = {lock.name: other for other, lock in of_engines[name].locks.items()}
    if installed.lock not in locks or installed.lock == of_engines[name].lock_for(device).name:
        return None
    return f"The environment {name} was created for {locks[installed.lock]}, and engines here run on {device}."


def environments_of(plan: Plan) -> list[str]:
    """Those of its engines, and of its tasks."""
    engines = registry.engines_of(plan.study)
    used = {config.engine for config in plan.configs}
    names = (engines[setup.engine].environment for setup in plan.study.engines if setup.name in used)
    tasks = [TASKS] if plan.study.quality is not None and plan.study.quality.lm_eval_tasks else []
    return sorted({*tasks, *(name for name in names if name is not None)})


def known_environments() -> dict[str, Environment]:
    """By name. An engine that cannot be imported is skipped with a warning."""
    of_engines = (engine.own_environment for engine in registry.engines().values())
    of_features = loaded("environments").values()
    return {known.name: known for known in (*of_engines, QUANTIZE, LMEVAL, *of_features) if known is not None}


def main_versions(installed: InstalledEnvironment, known: Mapping[str, Environment]) -> dict[str, str]:
    """Of the packages that decide what is measured; empty where nothing installed describes this environment."""
    return known[installed.name].main_versions(installed.versions) if installed.name in known else {}


def known_environment(name: str) -> Environment:
    """Raises EngineEnvironmentError with the names that exist."""
    known = known_environments()
    if name not in known:
        raise EngineEnvironmentError(f"Unknown environment {name}; known environments: {', '.join(sorted(known))}.")
    return known[name]

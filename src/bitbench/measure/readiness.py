"""What has to be installed and downloaded on this machine before a study can run, and the commands that do it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bitbench.engines import registry
from bitbench.engines.environments.installed import list_environments, python_of
from bitbench.models.catalog import CATALOG
from bitbench.models.fetch import ENVIRONMENT
from bitbench.study.environment import Device
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

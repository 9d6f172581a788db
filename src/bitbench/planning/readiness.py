"""Which environments and models there are, the commands that bring what a study lacks, and how a model is got."""

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from bitbench.engines import registry
from bitbench.engines.environments import (
    InstalledEnvironment,
    environment_folder,
    environment_python,
    installed_environments,
    is_foreign_environment,
    python_in,
    read_environment_manifest,
    versions,
)
from bitbench.feature import loaded_from_features
from bitbench.models import hub
from bitbench.models.catalog import CATALOG, ENVIRONMENT, fetch, find_catalog_model
from bitbench.models.hub import HubReference, parse_hub_reference
from bitbench.models.library import source_of
from bitbench.quality.tasks import ENVIRONMENT as TASKS
from bitbench.quality.tasks import LMEVAL
from bitbench.quantize.backends import QUANTIZE
from bitbench.study.environment import Device, Environment, venv_folder
from bitbench.study.plan import Plan
from bitbench.util.errors import EngineEnvironmentError, ModelError, NotReadyError


@dataclass(frozen=True)
class Readiness:
    environments: Mapping[str, str | None]  # what is wrong with each; None: it is installed
    missing_models: tuple[str, ...]
    asked_for: Device | None = None  # what a person chose; None: what this machine would choose
    making_s: float = (
        0.0  # about: to create the variants that are missing, which `bitbench run` does
    )
    # What the environments that somebody else made must have, by path: bitbench installs nothing there.
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def commands(self) -> tuple[str, ...]:
        """In an order in which they work: models of the catalog are converted in an environment."""
        names = [name for name, problem in self.environments.items() if problem is not None]
        return (
            *map(self._creation, names),
            *(f"bitbench model get {name}" for name in self.missing_models),
        )

    def _creation(self, name: str) -> str:
        if not is_foreign_environment(name):
            return f"bitbench env create {name}{f' --device {self.asked_for}' if self.asked_for else ''}"
        folder = venv_folder(Path(name))
        make = [] if folder.exists() else [f"python3 -m venv {shlex.quote(str(folder))}"]
        python = shlex.quote(str(python_in(folder)))
        install = (
            [f"{python} -m pip install {self.packages[name]}"] if name in self.packages else []
        )
        return " && ".join([*make, *install])

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
    packages: Mapping[str, str] | None = None,
) -> Readiness:
    """`needed`: environments of the study's engines, of what makes its variants, and of its tasks. `device`: what the
    engines compute on, for which theirs must have been made; `asked_for`: the same where a person chose it.
    `packages`: what those that somebody else made must have, by path."""
    packages = packages or {}
    models = tuple(missing_models)
    names = sorted(
        {*needed, *(ENVIRONMENT for model in models if model in CATALOG)}
    )  # it converts them
    problems = {
        name: _problem(name, home, packages) or (device and _of_another_device(name, home, device))
        for name in names
    }
    return Readiness(problems, models, asked_for, making_s, packages)


def _problem(name: str, home: Path, packages: Mapping[str, str]) -> str | None:
    try:
        environment_python(name, home)
        found = versions(name, home)
    except EngineEnvironmentError as error:
        return str(error)
    if name in packages and not any(package.startswith(packages[name]) for package in found):
        return f"{name} has no {packages[name]}."
    return None


def _of_another_device(name: str, home: Path, device: Device) -> str | None:
    """Where an engine's was made from the lock of another device: there the engine would compute."""
    of_engines = {
        known.name for engine in registry.engines().values() if (known := engine.own_environment)
    }
    installed = read_environment_manifest(environment_folder(name, home))
    if name not in of_engines or installed is None:
        return None
    known = known_environment(name)
    locks = {lock.name: other for other, lock in known.locks.items()}
    if installed.lock not in locks or installed.lock == known.lock_for(device).name:
        return None
    return f"The environment {name} was created for {locks[installed.lock]}, and engines here run on {device}."


def readiness_environments(plan: Plan) -> list[str]:
    """Those of its engines, and of its tasks."""
    engines = registry.registered_engines_of(plan.study)
    used = {config.engine for config in plan.configs}
    setups = [setup for setup in plan.study.engines if setup.name in used]
    names = (setup.environment(engines[setup.engine].environment) for setup in setups)
    tasks = [TASKS] if plan.study.quality is not None and plan.study.quality.lm_eval_tasks else []
    return sorted({*tasks, *(name for name in names if name is not None)})


def readiness_packages(plan: Plan) -> dict[str, str]:
    """What each environment that somebody else made must have for its engine."""
    engines, found = registry.registered_engines_of(plan.study), {}
    for setup in plan.study.engines:
        known, name = engines[setup.engine].own_environment, setup.environment(None)
        if name is not None and known is not None and known.main_packages:
            found[name] = known.main_packages[0]
    return found


def known_environments() -> dict[str, Environment]:
    """By name. An engine that cannot be imported is skipped with a warning."""
    of_engines = (engine.own_environment for engine in registry.engines().values())
    of_features = loaded_from_features("environments").values()
    return {
        known.name: known
        for known in (*of_engines, QUANTIZE, LMEVAL, *of_features)
        if known is not None
    }


def known_environment_versions(
    installed: InstalledEnvironment, known: Mapping[str, Environment]
) -> dict[str, str]:
    """Of the packages that decide what is measured; empty where nothing installed describes this environment."""
    name = installed.name
    return known[name].main_versions(installed.versions) if name in known else {}


def known_environment(name: str) -> Environment:
    """Raises EngineEnvironmentError with the names that exist."""
    known = known_environments()
    if name not in known:
        raise EngineEnvironmentError(
            f"Unknown environment {name}; known environments: {', '.join(sorted(known))}."
        )
    return known[name]


_NEEDS_THE_LIBRARY = (
    "Downloading from a hub needs huggingface_hub: install it with pip install 'bitbench[hub]', or create an "
    "environment that has it with: bitbench env create transformers"
)


def make_model_ready(
    name: str, home: Path, *, on_step: Callable[[str], None], on_progress: hub.OnProgress
) -> list[str]:
    """Download it, or have its source create it; what came of it, in sentences."""
    if (source := source_of(name)) is not None:
        return source.make(name, home, on_progress)
    reference = None if name in CATALOG else parse_hub_reference(name)
    if reference is not None:
        return _from_hub(reference, home, on_progress)
    find_catalog_model(name)  # raises with the names that exist
    path = fetch(name, home, python=environment_python(ENVIRONMENT, home), on_step=on_step)
    return [f"{name} is at {path}"]


def hub_python(home: Path) -> Path:
    """A Python with huggingface_hub: ours with the extra `hub`, else that of any environment; raises ModelError."""
    if find_spec("huggingface_hub") is not None:
        return Path(sys.executable)
    for installed in installed_environments(home):
        if installed.complete and "huggingface-hub" in installed.versions:
            return environment_python(installed.name, home)
    raise ModelError(_NEEDS_THE_LIBRARY)


def _from_hub(reference: HubReference, home: Path, on_progress: hub.OnProgress) -> list[str]:
    got = hub.download(reference, home, python=hub_python(home), on_progress=on_progress)
    said = [f"{reference} is at {got.model.path} (commit {got.model.commit})"]
    if got.from_cache:
        said.append("The hub was not asked: this is what the shared cache has of it.")
    if got.moved_from is not None:
        said.append(
            f"{reference.revision} has moved since the last download; studies that name {reference} now mean the new "
            f"commit. To keep the old one, write {reference.repository}@{got.moved_from}."
        )
    return said

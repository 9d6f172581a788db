"""The environments and models that a study needs, the commands that provide the missing ones, and
the download of a model."""

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from bitbench.engines import registry
from bitbench.engines.environments import (
    InstalledEnvironment,
    environment_python,
    get_environment_folder,
    get_python_path,
    is_foreign_environment,
    list_environments,
    read_environment_manifest,
    versions,
)
from bitbench.feature import load_from_features
from bitbench.models import hub
from bitbench.models.catalog import CATALOG, ENVIRONMENT, fetch, find_catalog_model
from bitbench.models.hub import HubReference, parse_hub_reference
from bitbench.models.library import find_source
from bitbench.quality.tasks import ENVIRONMENT as TASKS
from bitbench.quality.tasks import LMEVAL
from bitbench.quantize.backends import QUANTIZE
from bitbench.study.environment import Device, Environment, find_venv_folder
from bitbench.study.plan import Plan
from bitbench.util.errors import EngineEnvironmentError, ModelError, NotReadyError


@dataclass(frozen=True)
class Readiness:
    """The state of everything that a study needs before it can run."""

    environments: Mapping[str, str | None]  # the problem of each, None if it is installed
    missing_models: tuple[str, ...]
    asked_for: Device | None = None  # the user's choice, None if this machine's default applies
    making_s: float = 0.0  # approximate time of `bitbench run` to create the missing variants
    # The required package of each environment that the user made, by path. bitbench installs
    # nothing there.
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that are needed first, in an order that works: an environment converts the
        models of the catalog."""
        names = [name for name, problem in self.environments.items() if problem is not None]
        return (
            *map(self._format_creation, names),
            *(f"bitbench model get {name}" for name in self.missing_models),
        )

    def _format_creation(self, name: str) -> str:
        """Return the command that creates an environment, or that completes one of the user's."""
        if not is_foreign_environment(name):
            option = f" --device {self.asked_for}" if self.asked_for else ""
            return f"bitbench env create {name}{option}"
        folder = find_venv_folder(Path(name))
        commands: list[str] = []
        if not folder.exists():
            commands.append(f"python3 -m venv {shlex.quote(str(folder))}")
        if name in self.packages:
            python = shlex.quote(str(get_python_path(folder)))
            commands.append(f"{python} -m pip install {self.packages[name]}")
        return " && ".join(commands)

    def require(self) -> None:
        """Raise NotReadyError with every command that is needed first, if there are any."""
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
    """Return which of the needed environments and models are missing.

    `needed` holds the environments of the engines, of the tools that make variants, and of the
    tasks. `device` is what engines compute on, which their environments must be created for.
    `asked_for` is the same if the user chose it. `packages` holds the required package of each
    environment that the user made, by path.
    """
    packages = packages or {}
    models = tuple(missing_models)
    environments = set(needed)
    if any(model in CATALOG for model in models):
        environments.add(ENVIRONMENT)  # it converts the models of the catalog
    problems: dict[str, str | None] = {}
    for name in sorted(environments):
        problem = _find_problem(name, home, packages)
        if not problem and device:
            problem = _find_device_mismatch(name, home, device)
        problems[name] = problem
    return Readiness(problems, models, asked_for, making_s, packages)


def _find_problem(name: str, home: Path, packages: Mapping[str, str]) -> str | None:
    """Return why an environment cannot be used, or None."""
    try:
        environment_python(name, home)
        installed = versions(name, home)
    except EngineEnvironmentError as error:
        return str(error)
    if name in packages and not any(package.startswith(packages[name]) for package in installed):
        return f"{name} has no {packages[name]}."
    return None


def _find_device_mismatch(name: str, home: Path, device: Device) -> str | None:
    """Return the problem of an engine's environment that was made for another device, or None. Its
    engine would compute on that device."""
    engine_environments: set[str] = set()
    for engine in registry.engines().values():
        if engine.own_environment:
            engine_environments.add(engine.own_environment.name)
    installed = read_environment_manifest(get_environment_folder(name, home))
    if name not in engine_environments or installed is None:
        return None
    environment = get_environment(name)
    locks = {lock.name: lock_device for lock_device, lock in environment.locks.items()}
    if installed.lock not in locks or installed.lock == environment.lock_for(device).name:
        return None
    return (
        f"The environment {name} was created for {locks[installed.lock]}, "
        f"and engines here run on {device}."
    )


def list_needed_environments(plan: Plan) -> list[str]:
    """Return the environments of the plan's engines and of its tasks."""
    engines = registry.load_study_engines(plan.study)
    used_setups = {config.engine for config in plan.configs}
    names: set[str] = set()
    if plan.study.quality is not None and plan.study.quality.lm_eval_tasks:
        names.add(TASKS)
    for setup in plan.study.engines:
        name = setup.environment(engines[setup.engine].environment)
        if setup.name in used_setups and name is not None:
            names.add(name)
    return sorted(names)


def list_needed_packages(plan: Plan) -> dict[str, str]:
    """Return the package that each environment made by the user must have for its engine."""
    engines = registry.load_study_engines(plan.study)
    packages: dict[str, str] = {}
    for setup in plan.study.engines:
        environment = engines[setup.engine].own_environment
        name = setup.environment(None)
        if name is not None and environment is not None and environment.main_packages:
            packages[name] = environment.main_packages[0]
    return packages


def collect_environments() -> dict[str, Environment]:
    """Return every environment by name. An engine that cannot be imported is skipped with a
    warning."""
    of_engines = [engine.own_environment for engine in registry.engines().values()]
    of_features = load_from_features("environments").values()
    by_name: dict[str, Environment] = {}
    for environment in (*of_engines, QUANTIZE, LMEVAL, *of_features):
        if environment is not None:
            by_name[environment.name] = environment
    return by_name


def list_main_versions(
    installed: InstalledEnvironment, environments: Mapping[str, Environment]
) -> dict[str, str]:
    """Return the versions of the packages that decide what is measured. The result is empty for an
    environment that is not among `environments`."""
    environment = environments.get(installed.name)
    return environment.select_main_versions(installed.versions) if environment else {}


def get_environment(name: str) -> Environment:
    """Return the environment of this name. Raise EngineEnvironmentError with the names that
    exist."""
    environments = collect_environments()
    if name not in environments:
        raise EngineEnvironmentError(
            f"Unknown environment {name}; known environments: {', '.join(sorted(environments))}."
        )
    return environments[name]


_NEEDS_THE_LIBRARY = (
    "Downloading from a hub needs huggingface_hub: install it with pip install 'bitbench[hub]', "
    "or create an environment that has it with: bitbench env create transformers"
)


def make_model_ready(
    name: str, home: Path, *, on_step: Callable[[str], None], on_progress: hub.OnProgress
) -> list[str]:
    """Download a model, or have its source create it. Return the outcome as sentences."""
    source = find_source(name)
    if source is not None:
        return source.make(name, home, on_progress)
    reference = None if name in CATALOG else parse_hub_reference(name)
    if reference is not None:
        return _download_from_hub(reference, home, on_progress)
    find_catalog_model(name)  # raises with the names that exist
    path = fetch(name, home, python=environment_python(ENVIRONMENT, home), on_step=on_step)
    return [f"{name} is at {path}"]


def hub_python(home: Path) -> Path:
    """Return a Python with huggingface_hub: bitbench's if it has the extra `hub`, else an
    environment's. Raise ModelError if none has it."""
    if find_spec("huggingface_hub") is not None:
        return Path(sys.executable)
    for installed in list_environments(home):
        if installed.complete and "huggingface-hub" in installed.versions:
            return environment_python(installed.name, home)
    raise ModelError(_NEEDS_THE_LIBRARY)


def _download_from_hub(
    reference: HubReference, home: Path, on_progress: hub.OnProgress
) -> list[str]:
    download = hub.download(reference, home, python=hub_python(home), on_progress=on_progress)
    sentences = [f"{reference} is at {download.model.path} (commit {download.model.commit})"]
    if download.from_cache:
        sentences.append("The hub was not asked: this is what the shared cache has of it.")
    if download.moved_from is not None:
        sentences.append(
            f"{reference.revision} has moved since the last download; "
            f"studies that name {reference} now mean the new commit. "
            f"To keep the old one, write {reference.repository}@{download.moved_from}."
        )
    return sentences

"""What has to be installed and downloaded on this machine before a study can run, and the commands that do it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bitbench import environments
from bitbench.ground.errors import EngineEnvironmentError, NotReadyError
from bitbench.models.catalog import CATALOG
from bitbench.models.library import ENVIRONMENT


@dataclass(frozen=True)
class Readiness:
    environments: Mapping[str, str | None]  # what is wrong with each; None: it is installed
    missing_models: tuple[str, ...]

    @property
    def commands(self) -> tuple[str, ...]:
        """In an order in which they work: models of the catalog are converted in an environment."""
        names = [name for name, problem in self.environments.items() if problem is not None]
        return (
            *(f"bitbench env create {name}" for name in names),
            *(f"bitbench model get {name}" for name in self.missing_models),
        )

    def require(self) -> None:
        """Raises NotReadyError with every command that is needed, before anything starts."""
        if self.commands:
            raise NotReadyError(f"this study cannot run yet; first: {' && '.join(self.commands)}")


def readiness(needed: Iterable[str], missing_models: Iterable[str], home: Path) -> Readiness:
    """`needed`: environments of the study's engines, of what makes its variants, and of its tasks."""
    models = tuple(missing_models)
    names = sorted({*needed, *(ENVIRONMENT for model in models if model in CATALOG)})  # it converts them
    return Readiness({name: _problem(name, home) for name in names}, models)


def _problem(name: str, home: Path) -> str | None:
    try:
        environments.python_of(name, home)
    except EngineEnvironmentError as error:
        return str(error)
    return None

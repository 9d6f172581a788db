"""The environment that an engine or a feature needs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from bitbench.util.errors import EngineEnvironmentError

Device = Literal["cpu", "cuda"]
OnStep = Callable[[str], None]  # called with a short description of the current step


def find_venv_folder(path: Path) -> Path:
    """Return the folder of a virtual environment, given that folder or its Python."""
    if path.parent.name == "bin":
        return path.parent.parent
    return path


class Finish(Protocol):
    """A function that completes an environment after its packages are installed."""

    def __call__(self, environment: Path, log_file: Path, *, device: Device) -> str | None:
        """Install the missing parts and return a description of the programs, or None."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment. Each engine needs one, because their dependencies conflict."""

    name: str  # for `bitbench env create`
    # A requirements file per device, which pins every package with the hashes of its wheels
    # (`scripts/lock`). It is installed without resolving dependencies. A device without a file
    # uses the file of the CPU.
    locks: Mapping[Device, Path]
    import_check: str  # Python that must run without an error once the packages are installed
    main_packages: tuple[str, ...] = ()  # decide the results. Lower case, with hyphens
    # packages that exist only as source, built with the packages of the lock
    source_lock: Path | None = None
    finish: Finish | None = None  # runs after the packages are installed
    # False if its engine is a program, which no other Python environment contains
    is_of_python: bool = True

    def lock_for(self, device: Device) -> Path:
        """Return the requirements file. Raise EngineEnvironmentError if the device has none."""
        lock = self.locks.get(device) or self.locks.get("cpu")
        if lock is None:
            raise EngineEnvironmentError(
                f"The environment {self.name} can be created for {' and '.join(self.locks)} only; "
                f"this machine runs on {device}."
            )
        return lock

    def select_main_versions(self, versions: Mapping[str, str]) -> dict[str, str]:
        """Select the versions of the main packages."""
        return {package: versions[package] for package in self.main_packages if package in versions}

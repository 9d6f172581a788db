"""The environment that an engine or a feature needs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from bitbench.util.errors import EngineEnvironmentError

Device = Literal["cpu", "cuda"]
OnStep = Callable[[str], None]  # hears what is being done, in a few words


def venv_folder(place: Path) -> Path:
    """Of a virtual environment, by its folder or by its python."""
    return place.parent.parent if place.parent.name == "bin" else place


class Finish(Protocol):
    def __call__(self, environment: Path, log_file: Path, *, device: Device) -> str | None:
        """Add to the environment's folder what its packages lack, and say in words which programs it has now."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment of its own: dependencies of engines conflict with each other and with ours."""

    name: str  # for `bitbench env create`
    # Per device a requirements file that pins every package with the hashes of its wheels (`scripts/lock`): it is
    # installed without looking at dependencies. A device that has none gets that of the CPU.
    locks: Mapping[Device, Path]
    import_check: str  # Python that must run without an error once the packages are installed
    main_packages: tuple[str, ...] = ()  # decide what is measured; lower case, with hyphens
    source_lock: Path | None = (
        None  # packages that exist as source only; built with what the lock installed
    )
    finish: Finish | None = None  # runs after the packages are installed
    is_of_python: bool = (
        True  # False: its engine is a program, and no other environment of Python has it
    )

    def lock_for(self, device: Device) -> Path:
        lock = self.locks.get(device) or self.locks.get("cpu")
        if lock is None:
            raise EngineEnvironmentError(
                f"The environment {self.name} can be created for {' and '.join(self.locks)} only; this machine runs on "
                f"{device}."
            )
        return lock

    def main_versions(self, versions: Mapping[str, str]) -> dict[str, str]:
        """Of all installed versions those of the main packages."""
        return {package: versions[package] for package in self.main_packages if package in versions}

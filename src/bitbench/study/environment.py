"""The environment that an engine or a feature needs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from bitbench.util.errors import EngineEnvironmentError

VERSION = r"[0-9][A-Za-z0-9.+!_-]*"  # of an engine: a part of a folder's name, and of what an installer is asked for
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
    source_lock: Path | None = None  # packages that exist as source only; built with what the lock installed
    finish: Finish | None = None  # runs after the packages are installed
    is_of_python: bool = True  # False: its engine is a program, and no other environment of Python has it
    # The environment whose engine this one has in another version: its locks are resolved from that one's when it is
    # created. None: its locks come with bitbench.
    origin: "Environment | None" = None

    def lock_for(self, device: Device) -> Path:
        lock = self.locks.get(device) or self.locks.get("cpu")
        if lock is None:
            raise EngineEnvironmentError(
                f"The environment {self.name} can be created for {' and '.join(self.locks)} only; this machine runs on "
                f"{device}."
            )
        return lock

    def at(self, version: str, folder: Path) -> "Environment":
        """The same with this version of its engine, and locks in `folder`; raises EngineEnvironmentError."""
        if not self.main_packages:
            raise EngineEnvironmentError(
                f"The environment {self.name} has no other versions: what it runs is not a package of the index. "
                "Measure a server of your own with the engine `endpoint`."
            )
        name = f"{self.name}=={version}"
        return replace(
            self, name=name, locks={device: folder / f"{name}-{device}.txt" for device in self.locks}, origin=self
        )

    def main_versions(self, versions: Mapping[str, str]) -> dict[str, str]:
        """Of all installed versions those of the main packages."""
        return {package: versions[package] for package in self.main_packages if package in versions}

"""Kernel cases by name, as features offer them in the group `kernel_cases`.

They are not imported here: a case imports torch, which lives in another environment. What the worker there needs is
the module, the name in it, and the folder of the package.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from bitbench.feature import Offer, offered
from bitbench.util.errors import KernelError
from bitbench.util.plugins import warn_of_plugin

GROUP = "kernel_cases"


@dataclass(frozen=True)
class CaseSource:
    name: str
    offer: Offer

    @property
    def module(self) -> str:
        return importlib.util.resolve_name(self.offer.target.partition(":")[0], self.offer.feature.package)

    @property
    def attribute(self) -> str:
        return self.offer.target.partition(":")[2]

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]

    def warn_that_unusable(self, cause: str) -> None:
        """For a case that was not requested by name: the others run without it."""
        feature = self.offer.feature
        warn_of_plugin(f"Kernel cases of the feature {feature.name} ({feature.package}) cannot be loaded: {cause}")


def case_sources(names: Sequence[str] | None = None) -> tuple[CaseSource, ...]:
    """All cases whose package is found, or the named ones; raises KernelError for a name that no feature offers."""
    known = {name: CaseSource(name, offer) for name, offer in offered(GROUP).items()}
    if names is None:
        return tuple(known[name] for name in sorted(known) if _is_found(known[name]))
    for name in names:
        if name not in known:
            raise KernelError(f"Unknown kernel case {name}; known cases: {', '.join(sorted(known))}.")
    return tuple(known[name] for name in dict.fromkeys(names))


def package_folders(sources: Sequence[CaseSource]) -> dict[str, str]:
    """Where the packages of the cases lie, and ours, which they build on."""
    return {name: _folder(name) for name in sorted({"bitbench", *(source.package for source in sources)})}


def native_module() -> str | None:
    """The file of the native module; None where it was not built."""
    spec = importlib.util.find_spec("bitbench._native")
    return None if spec is None else spec.origin


def _is_found(source: CaseSource) -> bool:
    try:
        _folder(source.package)
    except KernelError as error:
        source.warn_that_unusable(str(error))
        return False
    return True


def _folder(package: str) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise KernelError(f"{package}, which offers a kernel case, cannot be imported; reinstall it.")
    return next(iter(spec.submodule_search_locations))

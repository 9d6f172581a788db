"""All environments that can be created here: those of the installed engines, of stages and of features."""

from collections.abc import Mapping

from bitbench.engines import registry
from bitbench.engines.environments.installed import InstalledEnvironment
from bitbench.feature import loaded
from bitbench.quality.environment import LMEVAL
from bitbench.quantize.environment import QUANTIZE
from bitbench.study.environment import Environment
from bitbench.util.errors import EngineEnvironmentError


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

"""What must be equal before two studies may be compared; without imports, so that --help stays quick."""

from enum import StrEnum


class Fact(StrEnum):
    """As `--allow` spells it."""

    HOST = "host"
    ENVIRONMENT = "environment"  # packages around the engine
    ENGINE_VERSION = "engine-version"
    KERNEL = "kernel"  # what the engine really selected
    ARGUMENTS = "arguments"
    PREFIX_CACHING = "prefix-caching"
    ARTIFACT = "artifact"  # hash of the weights
    TOOL = "tool"  # who measured: bitbench, or a tool whose file was imported

"""The facts that must be equal before two studies may be compared.

The module has no imports of bitbench, so that --help stays quick.
"""

from enum import StrEnum


class Fact(StrEnum):
    """A fact, as `--allow` spells it."""

    HOST = "host"
    ENVIRONMENT = "environment"  # packages around the engine
    ENGINE_VERSION = "engine-version"
    KERNEL = "kernel"  # that the engine actually selected
    ARGUMENTS = "arguments"
    PREFIX_CACHING = "prefix-caching"
    ARTIFACT = "artifact"  # hash of the weights
    TOOL = "tool"  # who measured: bitbench, or a tool whose file was imported

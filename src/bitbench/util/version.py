"""The version of bitbench, where every module may import it from."""

__version__ = "0.1.0"

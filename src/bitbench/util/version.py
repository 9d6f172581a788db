"""The version of bitbench. Every module may import it from here."""

__version__ = "0.1.0"

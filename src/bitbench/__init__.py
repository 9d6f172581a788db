"""bitbench: the workbench for quantized LLM inference."""

__version__ = "0.1.0"

"""Where kernels run; without imports, so that --help stays quick."""

from enum import StrEnum


class KernelDevice(StrEnum):
    """As torch spells it."""

    CPU = "cpu"
    CUDA = "cuda"

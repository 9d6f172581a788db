"""What can be chosen on the command line; without imports, so that --help stays quick."""

from enum import StrEnum


class Tool(StrEnum):
    VENDOR_TABLE = "vendor-table"  # tables as vendors and projects publish them beside their models
    SGLANG = "sglang"
    VLLM = "vllm"
    GUIDELLM = "guidellm"
    AIPERF = "aiperf"
    LLAMA_BENCH = "llama-bench"
    OPTIMUM = "optimum-benchmark"


class Starts(StrEnum):
    """What a start of the engine was: the files do not say, and intervals depend on it."""

    PER_FILE = "per-file"
    PER_RUN = "per-run"
    ONE = "one"

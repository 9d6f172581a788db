"""What is imported, and what can go wrong."""

from enum import StrEnum

from bitbench.util.errors import BitbenchError
from bitbench.util.exit_codes import ExitCode


class ImportFileError(BitbenchError):
    """A result file has another format than given, or contains no results."""

    exit_code = ExitCode.REFUSED


class Tool(StrEnum):
    """As `bitbench import --from` spells it."""

    VENDOR_TABLE = "vendor-table"  # tables as vendors and projects publish them beside their models
    SGLANG = "sglang"
    VLLM = "vllm"
    GUIDELLM = "guidellm"
    AIPERF = "aiperf"
    LLAMA_BENCH = "llama-bench"
    OPTIMUM = "optimum-benchmark"


class ImportedStarts(StrEnum):
    """What a start of the engine was: the files do not say, and intervals depend on it."""

    PER_FILE = "per-file"
    PER_RUN = "per-run"
    ONE = "one"

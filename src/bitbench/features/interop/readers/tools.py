"""Which reader a tool's name means."""

from collections.abc import Callable

from bitbench.features.interop.readers import aiperf, guidellm, llama_bench, optimum, sglang, vendor_table, vllm
from bitbench.features.interop.readers.reading import Reading
from bitbench.features.interop.readers.text import MIS_ENCODED, decoded
from bitbench.features.interop.types import ImportFileError, Tool

READERS: dict[Tool, Callable[[str], Reading]] = {
    Tool.VENDOR_TABLE: vendor_table.read,
    Tool.SGLANG: sglang.read,
    Tool.VLLM: vllm.read,
    Tool.GUIDELLM: guidellm.read,
    Tool.AIPERF: aiperf.read,
    Tool.LLAMA_BENCH: llama_bench.read,
    Tool.OPTIMUM: optimum.read,
}


def read(tool: Tool, content: bytes) -> Reading:
    """What a file of this tool holds; raises ImportFileError where it is another kind of file, or holds no run."""
    text, was_mis_encoded = decoded(content)
    reading = READERS[tool](text)
    if not reading.runs and not reading.kernels:
        raise ImportFileError("it contains no runs")
    if was_mis_encoded:
        reading.notes.append(MIS_ENCODED)
    return reading

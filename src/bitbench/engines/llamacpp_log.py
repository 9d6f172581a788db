"""What llama-server says in its log, as facts. Written against b10605 and 86a2835; a line that is not found leaves its
fact undefined."""

import re
from collections.abc import Iterable, Mapping

from bitbench.records.trial import InstanceFacts, KernelChoice, KernelPath
from bitbench.util.units import show_bytes

# "0.12.345.678 I ": minutes, seconds, milliseconds, microseconds since the start, then the level.
_PREFIX = re.compile(r"^(?:(\d+)\.(\d\d)\.(\d{3})\.(\d{3}) )?(?:([IWED]) )?")
# "build 10605 (b10605)", or "build 1 (86a2835)" of one whose history was not there to count: then the commit names it.
_VERSION = re.compile(r"\bbuild:? [01] \((\w+)\)|\bbuild:? (\d+) \(|\bversion: (\d+) \(")
_COMPILER = re.compile(r"\bbuild:? \d+ \(\S+\) with (.+) for ")
_SYSTEM = re.compile(r"system_info: n_threads = (\d+).* / (\d+) \| (.*)")
_FEATURE = re.compile(r"(\w+) = (\d+)")
_BUFFER = re.compile(r"load_tensors: +(\S+) model buffer size = +([\d.]+) MiB")
_FILE_TYPE = re.compile(r"print_info: file type += (.+)")
_TENSORS = re.compile(r"llama_model_loader: - type +(\S+): +(\d+) tensors")
# "8/8 seqs": requests that may be in flight, and parts of so many cells each that the cache has for them.
_KV_SIZE = re.compile(r"\bsize = +([\d.]+) MiB \( *(\d+) cells, .*/(\d+) seqs\)")
_LOAD_BEGAN = re.compile(r"load_tensors: loading model tensors")
_LOAD_ENDED = re.compile(r"llama_context: constructing llama_context")
_MIB = 2**20

# A start that ends with one of these is not a crash: llama.cpp says that it cannot run this.
UNSUPPORTED = re.compile(
    r"unknown model architecture"
    r"|unsupported model architecture"
    r"|unknown pre-tokenizer type"
    r"|^error: invalid argument: "
    r"|has invalid ggml type"
    r"|quantized V cache requires"
)


def message_of(line: str) -> str:
    """A log line without its time and level; an error says so in a word, as the search for a cause expects it."""
    return _PREFIX.sub(lambda prefix: "Error: " if prefix[5] == "E" else "", line, count=1)


def read_facts(log: str, *, prefix_caching: bool) -> InstanceFacts:
    lines = log.splitlines()
    messages = [message_of(line) for line in lines]
    caches = [found for found in map(_KV_SIZE.search, messages) if found]
    buffers = _weight_buffers(messages)
    compiler = _first(_COMPILER, messages)
    return InstanceFacts(
        engine_version=_first(_VERSION, messages),
        versions={"compiler": compiler} if compiler else {},
        kernels=tuple(_kernels(messages, buffers)),
        kernel_choices=tuple(_choices(messages, buffers)),
        weight_bytes_loaded=sum(buffers.values()) if buffers else None,
        kv_cache_bytes=round(sum(float(found[1]) for found in caches) * _MIB) if caches else None,
        kv_cache_tokens=max(int(found[2]) * int(found[3]) for found in caches) if caches else None,
        kv_bytes_per_token=round(sum(map(_bytes_per_cell, caches))) if caches else None,
        weight_load_s=_seconds_between(_LOAD_BEGAN, _LOAD_ENDED, lines),
        prefix_caching=prefix_caching,
        notes=tuple(_notes(messages)),
    )


def _weight_buffers(messages: Iterable[str]) -> dict[str, int]:
    """Bytes of weights by where they went. A kernel of its own for packed weights has a buffer of its own."""
    sizes: dict[str, int] = {}
    for found in filter(None, map(_BUFFER.search, messages)):
        sizes[found[1]] = sizes.get(found[1], 0) + round(float(found[2]) * _MIB)
    return sizes


def _bytes_per_cell(cache: re.Match[str]) -> float:
    return float(cache[1]) * _MIB / (int(cache[2]) * int(cache[3]))


def _kernels(messages: list[str], buffers: Mapping[str, int]) -> Iterable[str]:
    """The type of the weights, where they went (which decides the kernels), and the processor features in use.

    A tensor whose rows do not fit a type is stored in another one, so the counts say what is really run.
    """
    if file_type := _first(_FILE_TYPE, messages):
        tensors = {found[1]: found[2] for found in map(_TENSORS.search, messages) if found}
        counts = ", ".join(f"{count} tensors {name}" for name, count in tensors.items())
        yield f"weights {file_type}: {counts}" if counts else f"weights {file_type}"
    for name, size in buffers.items():
        yield f"{name} buffer: {show_bytes(size)} of weights"
    system = _system(messages)
    features = [name for name, value in _FEATURE.findall(system[3]) if value != "0"] if system else []
    if features:
        yield f"CPU features {', '.join(features)}"


def _choices(messages: list[str], buffers: Mapping[str, int]) -> Iterable[KernelChoice]:
    """By type of tensor; what is left in 32 bits are vectors. The buffers that hold weights decide the kernels.

    On the processor ggml rounds activations to 8 bits and multiplies integers, whatever the type of the weights.
    """
    on_cpu = all(name.startswith("CPU") for name in buffers)
    for found in filter(None, map(_TENSORS.search, messages)):
        kind, count = found[1], int(found[2])
        if kind == "f32":
            continue
        path = KernelPath.DENSE if kind in ("f16", "bf16") else KernelPath.QUANTIZED
        yield KernelChoice(
            kind=f"{kind} tensors",
            kernel=f"ggml, {' and '.join(buffers)} buffer" if buffers else "ggml",
            layers=count,
            path=path if on_cpu and buffers else None,
            source="log",
        )


def _notes(messages: list[str]) -> Iterable[str]:
    if system := _system(messages):
        yield (
            f"llama.cpp computes with {system[1]} threads on a machine of {system[2]}; "
            "`args: {threads: N}` in the study changes this"
        )


def _system(messages: list[str]) -> re.Match[str] | None:
    return next(filter(None, map(_SYSTEM.search, messages)), None)


def _seconds_between(began: re.Pattern[str], ended: re.Pattern[str], lines: list[str]) -> float | None:
    start, end = _time_of(began, lines), _time_of(ended, lines)
    return None if start is None or end is None else round(end - start, 6)


def _time_of(pattern: re.Pattern[str], lines: list[str]) -> float | None:
    line = next(filter(pattern.search, lines), "")
    stamp = _PREFIX.match(line)
    if stamp is None or stamp[1] is None:
        return None
    minutes, seconds, milliseconds, microseconds = map(int, stamp.groups()[:4])
    return minutes * 60 + seconds + milliseconds / 1e3 + microseconds / 1e6


def _first(pattern: re.Pattern[str], messages: list[str]) -> str | None:
    """The first group that matched in the first message that does."""
    for message in messages:
        if found := pattern.search(message):
            return next((group for group in found.groups() if group), found[0]).strip()
    return None

"""Defects of a quantized checkpoint, found in its files. Engines do not report them.

Such a model produces nonsense. The safetensors files are read without torch. For an expert of a
mixture that calibration never reached, the tool has no statistics. Its scales are then NaN,
infinite, zero, leftovers in memory, or missing although other experts have them.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

from bitbench.quantize.checkpoint import collect_linear_layers, is_ignored
from bitbench.study.recipe import COMPRESSED_TENSORS
from bitbench.util.errors import ModelError, QuantizeError
from bitbench.util.model_files import StoredTensor, read_model_json, read_safetensors_header
from bitbench.util.text import format_printable

MOST_TOLD = 5
_CHUNK_BYTES = 2**24
# The names of factors for weights, activations and KV caches in compressed-tensors, GPTQ, AWQ,
# ModelOpt, DeepSeek's FP8 and MXFP4.
_SCALE = re.compile(
    r"(?:^|[._])(?:(?:weight|input|output|[qkv])(?:_global)?_scale(?:_inv|_2)?|scales)$"
)
_CALIBRATED = re.compile(r"(?:^|[._])(?:input|output)(?:_global)?_scale$")
_EXPERT = re.compile(r"^(?P<layer>.*\.experts)\.(?P<expert>\d+)\.(?P<part>.*)$")
_FUSED_EXPERTS = re.compile(r"\.experts\.\w+$")
# Chooses experts: it has few weights, which tools leave unquantized.
_ROUTER = re.compile(r"(?:^|[._])(?:gate|router)$")
_DENSE = ("BF16", "F16", "F32", "F64")
# Experts of a layer see the same activations, so the scales of their inputs differ by a factor of
# about ten. Uninitialized memory differs by many orders of magnitude.
_FAR = 1e4


@dataclass(frozen=True)
class _Kind:
    """The bits with which a type of numbers stores NaN, infinity and zero."""

    unsigned: npt.DTypeLike  # the unsigned integer with as many bits
    magnitude: int  # mask of all bits except the sign
    special: int  # magnitudes from here on are NaN, except `infinite`
    infinite: int | None
    has_zero: bool = True


_KINDS: Mapping[str, _Kind] = {
    "F64": _Kind("<u8", 0x7FFF_FFFF_FFFF_FFFF, 0x7FF0_0000_0000_0000, 0x7FF0_0000_0000_0000),
    "F32": _Kind("<u4", 0x7FFF_FFFF, 0x7F80_0000, 0x7F80_0000),
    "BF16": _Kind("<u2", 0x7FFF, 0x7F80, 0x7F80),
    "F16": _Kind("<u2", 0x7FFF, 0x7C00, 0x7C00),
    "F8_E5M2": _Kind("<u1", 0x7F, 0x7C, 0x7C),
    "F8_E4M3": _Kind("<u1", 0x7F, 0x7F, None),
    "F8_E8M0": _Kind("<u1", 0xFF, 0xFF, None, has_zero=False),
}


@dataclass(frozen=True)
class Defect:
    tensor: str
    what: str  # "3 of 64 values are NaN"

    def __str__(self) -> str:
        match = _EXPERT.match(self.tensor)
        cause = ""
        if match and _CALIBRATED.search(self.tensor):
            cause = f": calibration never reached expert {match['expert']}"
        return f"{format_printable(self.tensor)} {self.what}{cause}"


def find_defects(checkpoint: Path, ignored: Sequence[str] | None) -> list[Defect]:
    """Return the defects, sorted by the names of tensors.

    `ignored` lists the layers that shall stay unquantized. With None that is unknown, and no layer
    is reported as unquantized. Raise ModelError if the files are missing or cannot be read.
    """
    headers = {}
    tensors: dict[str, StoredTensor] = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        headers[path] = read_safetensors_header(path)
        tensors |= headers[path]
    if not headers:
        raise ModelError(f"{checkpoint} has no safetensors files; only these can be checked.")
    defects = [
        *_iter_value_defects(headers),
        *_iter_missing_scales(tensors),
        *_iter_far_scales(headers),
    ]
    if ignored is not None:
        defects += _iter_unquantized_layers(tensors, ignored)
    return sorted(defects, key=lambda defect: defect.tensor)


def refuse_broken(checkpoint: Path, ignored: Sequence[str] | None) -> None:
    """Raise QuantizeError with the first defects, if there are any."""
    defects = find_defects(checkpoint, ignored)
    if not defects:
        return
    text = "; ".join(map(str, defects[:MOST_TOLD]))
    if len(defects) > MOST_TOLD:
        text += f"; and {len(defects) - MOST_TOLD:,} more"
    raise QuantizeError(f"the checkpoint is broken: {text}")


def find_ignored_layers(checkpoint: Path) -> tuple[str, ...] | None:
    """Return the layers that a compressed-tensors checkpoint leaves unquantized.

    None for a checkpoint in another form, or with schemes for some linear layers only.
    """
    config = read_model_json(checkpoint / "config.json").get("quantization_config")
    if not isinstance(config, dict) or config.get("quant_method") != COMPRESSED_TENSORS:
        return None
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        return None
    if any(group.get("targets") != ["Linear"] for group in groups.values()):
        return None
    return tuple(name for name in config.get("ignore") or () if isinstance(name, str))


def _iter_value_defects(files: Mapping[Path, Mapping[str, StoredTensor]]) -> Iterator[Defect]:
    """Yield NaN and infinite numbers in any tensor, and scales that are zero."""
    for path, tensors in files.items():
        for name, tensor in tensors.items():
            is_scale = _SCALE.search(name) is not None
            dtype = "F8_E8M0" if is_scale and tensor.dtype == "U8" else tensor.dtype
            if (kind := _KINDS.get(dtype)) is not None:
                counts = _count_values(path, tensor, kind)
                yield from (Defect(name, what) for what in counts.told(is_scale))


@dataclass
class _Counts:
    values: int = 0
    nan: int = 0
    infinite: int = 0
    zero: int = 0

    def told(self, is_scale: bool) -> Iterator[str]:
        """Yield a phrase for each kind of value that must not occur. Zero matters in a scale."""
        counts = {"NaN": self.nan, "infinite": self.infinite}
        if is_scale:
            counts["zero"] = self.zero
        for word, count in counts.items():
            if count and self.values == 1:
                yield f"is {word}"
            elif count:
                yield f"has {count:,} of {self.values:,} values that are {word}"


def _count_values(path: Path, tensor: StoredTensor, kind: _Kind) -> _Counts:
    counts = _Counts()
    mask = np.array(kind.magnitude, dtype=kind.unsigned)
    for part in _iter_parts(path, tensor):
        magnitude = np.frombuffer(part, dtype=kind.unsigned) & mask
        infinite = 0
        if kind.infinite is not None:
            infinite = int(np.count_nonzero(magnitude == kind.infinite))
        counts.values += magnitude.size
        counts.infinite += infinite
        counts.nan += int(np.count_nonzero(magnitude >= kind.special)) - infinite
        if kind.has_zero:
            counts.zero += magnitude.size - int(np.count_nonzero(magnitude))
    return counts


def _iter_parts(path: Path, tensor: StoredTensor) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(tensor.begin)
        for start in range(0, tensor.size_bytes, _CHUNK_BYTES):
            yield file.read(min(_CHUNK_BYTES, tensor.size_bytes - start))


def _iter_missing_scales(tensors: Mapping[str, StoredTensor]) -> Iterator[Defect]:
    """Yield statistics that some experts of a layer have and others lack."""
    experts: dict[str, set[str]] = defaultdict(set)
    calibrated: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name in tensors:
        if match := _EXPERT.match(name):
            experts[match["layer"]].add(match["expert"])
            if _CALIBRATED.search(name):
                calibrated[match["layer"], match["part"]].add(match["expert"])
    for (layer, part), with_scale in calibrated.items():
        for expert in sorted(experts[layer] - with_scale, key=int):
            yield Defect(f"{layer}.{expert}.{part}", "is missing, and other experts have it")


def _iter_far_scales(files: Mapping[Path, Mapping[str, StoredTensor]]) -> Iterator[Defect]:
    """Yield input scales of an expert that are orders of magnitude away from other experts'."""
    scales: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for path, tensors in files.items():
        for name, tensor in tensors.items():
            match = _EXPERT.match(name)
            if match and _CALIBRATED.search(name) and tensor.dtype in ("F32", "BF16", "F16"):
                value = _find_largest_value(path, tensor)
                if np.isfinite(value) and value > 0:
                    scales[match["layer"], match["part"]][name] = value
    for values in scales.values():
        usual = median(values.values())
        for name, value in values.items():
            if not usual / _FAR <= value <= usual * _FAR:
                what = f"is {value:.2g}, where the median of all experts is {usual:.2g}"
                yield Defect(name, what)


def _find_largest_value(path: Path, tensor: StoredTensor) -> float:
    content = b"".join(_iter_parts(path, tensor))
    if tensor.dtype == "BF16":
        values = (np.frombuffer(content, "<u2").astype("<u4") << 16).view("<f4")
    else:
        values = np.frombuffer(content, {"F32": "<f4", "F16": "<f2"}[tensor.dtype])
    return float(np.abs(values).max(initial=0.0))


def _iter_unquantized_layers(
    tensors: Mapping[str, StoredTensor], ignored: Sequence[str]
) -> Iterator[Defect]:
    """Yield layers that are stored as dense numbers although the recipe rounds them."""
    layers = {}  # by the name of the weight
    for layer in collect_linear_layers(tensors, ignored):
        if not _ROUTER.search(layer):
            layers[f"{layer}.weight"] = layer
    for name, tensor in tensors.items():
        if _FUSED_EXPERTS.search(name) and len(tensor.shape) == 3:
            layers[name] = name
    for name, layer in layers.items():
        dtype = tensors[name].dtype
        scales = {f"{layer}.weight_scale", f"{layer}_scale"}
        is_dense = dtype in _DENSE and not scales & tensors.keys()
        if is_dense and not is_ignored(layer, ignored):
            what = f"was left unquantized ({dtype}), and the recipe does not ignore it"
            yield Defect(name, what)

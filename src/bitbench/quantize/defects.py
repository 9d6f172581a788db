"""What is broken in a quantized checkpoint, found in its files: no engine says so, they answer nonsense.

Read are safetensors files, without torch. An expert of a mixture that calibration never reached has statistics of
nothing: a scale that is NaN, infinite, zero or whatever the memory held, or none where its neighbours have one.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

from bitbench.quantize.checkpoint import is_ignored, linear_layers
from bitbench.study.recipe import COMPRESSED_TENSORS
from bitbench.util.errors import ModelError, QuantizeError
from bitbench.util.model_files import StoredTensor, read_model_json, read_safetensors_header
from bitbench.util.text import printable

MOST_TOLD = 5
_CHUNK_BYTES = 2**24
# Numbers that weights, activations and KV caches are multiplied with, as compressed-tensors, GPTQ, AWQ, ModelOpt,
# DeepSeek's FP8 and MXFP4 call them.
_SCALE = re.compile(
    r"(?:^|[._])(?:(?:weight|input|output|[qkv])(?:_global)?_scale(?:_inv|_2)?|scales)$"
)
_CALIBRATED = re.compile(r"(?:^|[._])(?:input|output)(?:_global)?_scale$")
_EXPERT = re.compile(r"^(?P<layer>.*\.experts)\.(?P<expert>\d+)\.(?P<part>.*)$")
_FUSED_EXPERTS = re.compile(r"\.experts\.\w+$")
_ROUTER = re.compile(
    r"(?:^|[._])(?:gate|router)$"
)  # chooses experts: few weights, which tools leave as they are
_DENSE = ("BF16", "F16", "F32", "F64")
# Experts of a layer see the same activations: scales of their inputs lie within a factor of ten or so. Memory that
# nothing was written to is many orders of magnitude away from them.
_FAR = 1e4


@dataclass(frozen=True)
class _Kind:
    """How a type of numbers stores what is no ordinary number."""

    unsigned: npt.DTypeLike  # of as many bits
    magnitude: int  # all bits but the sign
    special: int  # magnitudes from here on are NaN, but for `infinite`
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
        cause = (
            f": calibration never reached expert {match['expert']}"
            if match and _CALIBRATED.search(self.tensor)
            else ""
        )
        return f"{printable(self.tensor)} {self.what}{cause}"


def find_defects(checkpoint: Path, ignored: Sequence[str] | None) -> list[Defect]:
    """By the names of tensors. `ignored`: layers that shall not be quantized; None: it is unknown what shall be. Raises
    ModelError where there is nothing to read, or it cannot be."""
    files = {
        path: read_safetensors_header(path) for path in sorted(checkpoint.glob("*.safetensors"))
    }
    if not files:
        raise ModelError(f"{checkpoint} has no safetensors files; only these can be checked.")
    tensors = {name: tensor for header in files.values() for name, tensor in header.items()}
    found = [*_values(files), *_missing_scales(tensors), *_far_scales(files)]
    if ignored is not None:
        found += _unquantized(tensors, ignored)
    return sorted(found, key=lambda defect: defect.tensor)


def refuse_broken(checkpoint: Path, ignored: Sequence[str] | None) -> None:
    """Raises QuantizeError with the first defects."""
    if found := find_defects(checkpoint, ignored):
        more = f"; and {len(found) - MOST_TOLD:,} more" if len(found) > MOST_TOLD else ""
        raise QuantizeError(
            f"the checkpoint is broken: {'; '.join(map(str, found[:MOST_TOLD]))}{more}"
        )


def ignored_by_configuration(checkpoint: Path) -> tuple[str, ...] | None:
    """Layers that a checkpoint in the form of compressed-tensors says are not quantized; None of any other."""
    said = read_model_json(checkpoint / "config.json").get("quantization_config")
    said = said if isinstance(said, dict) else {}
    groups = said.get("config_groups")
    targets = (
        [group.get("targets") for group in groups.values()] if isinstance(groups, dict) else []
    )
    if (
        said.get("quant_method") != COMPRESSED_TENSORS
        or not targets
        or any(each != ["Linear"] for each in targets)
    ):
        return None
    return tuple(name for name in said.get("ignore") or () if isinstance(name, str))


def _values(files: Mapping[Path, Mapping[str, StoredTensor]]) -> Iterator[Defect]:
    """NaN and infinite numbers anywhere, and scales that are zero."""
    for path, tensors in files.items():
        for name, tensor in tensors.items():
            is_scale = _SCALE.search(name) is not None
            kind = _KINDS.get("F8_E8M0" if is_scale and tensor.dtype == "U8" else tensor.dtype)
            if kind is not None:
                counts = _count(path, tensor, kind)
                yield from (Defect(name, what) for what in counts.told(is_scale))


@dataclass
class _Counts:
    values: int = 0
    nan: int = 0
    infinite: int = 0
    zero: int = 0

    def told(self, is_scale: bool) -> Iterator[str]:
        for word, count in (
            ("NaN", self.nan),
            ("infinite", self.infinite),
            ("zero", self.zero if is_scale else 0),
        ):
            if count:
                yield (
                    f"is {word}"
                    if self.values == 1
                    else f"has {count:,} of {self.values:,} values that are {word}"
                )


def _count(path: Path, tensor: StoredTensor, kind: _Kind) -> _Counts:
    counts = _Counts()
    for part in _parts(path, tensor):
        magnitude = np.frombuffer(part, dtype=kind.unsigned) & np.array(
            kind.magnitude, dtype=kind.unsigned
        )
        infinite = 0 if kind.infinite is None else int(np.count_nonzero(magnitude == kind.infinite))
        counts.values += magnitude.size
        counts.infinite += infinite
        counts.nan += int(np.count_nonzero(magnitude >= kind.special)) - infinite
        counts.zero += magnitude.size - int(np.count_nonzero(magnitude)) if kind.has_zero else 0
    return counts


def _parts(path: Path, tensor: StoredTensor) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(tensor.begin)
        for start in range(0, tensor.size_bytes, _CHUNK_BYTES):
            yield file.read(min(_CHUNK_BYTES, tensor.size_bytes - start))


def _missing_scales(tensors: Mapping[str, StoredTensor]) -> Iterator[Defect]:
    """Statistics that some experts of a layer have and others lack."""
    experts: dict[str, set[str]] = defaultdict(set)
    having: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name in tensors:
        if match := _EXPERT.match(name):
            experts[match["layer"]].add(match["expert"])
            if _CALIBRATED.search(name):
                having[match["layer"], match["part"]].add(match["expert"])
    for (layer, part), those in having.items():
        for expert in sorted(experts[layer] - those, key=int):
            yield Defect(f"{layer}.{expert}.{part}", "is missing, and other experts have it")


def _far_scales(files: Mapping[Path, Mapping[str, StoredTensor]]) -> Iterator[Defect]:
    """Scales of an expert's inputs that are orders of magnitude away from those of its neighbours."""
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for path, tensors in files.items():
        for name, tensor in tensors.items():
            match = _EXPERT.match(name)
            if match and _CALIBRATED.search(name) and tensor.dtype in ("F32", "BF16", "F16"):
                value = _largest(path, tensor)
                if np.isfinite(value) and value > 0:
                    found[match["layer"], match["part"]][name] = value
    for values in found.values():
        usual = median(values.values())
        for name, value in values.items():
            if not usual / _FAR <= value <= usual * _FAR:
                yield Defect(
                    name, f"is {value:.2g}, where the median of all experts is {usual:.2g}"
                )


def _largest(path: Path, tensor: StoredTensor) -> float:
    content = b"".join(_parts(path, tensor))
    if tensor.dtype == "BF16":
        values = (np.frombuffer(content, "<u2").astype("<u4") << 16).view("<f4")
    else:
        values = np.frombuffer(content, {"F32": "<f4", "F16": "<f2"}[tensor.dtype])
    return float(np.abs(values).max(initial=0.0))


def _unquantized(tensors: Mapping[str, StoredTensor], ignored: Sequence[str]) -> Iterator[Defect]:
    """Layers that are stored as dense numbers although the recipe rounds them."""
    left = {
        f"{layer}.weight": layer
        for layer in linear_layers(tensors, ignored)
        if not _ROUTER.search(layer)
    }
    left |= {
        name: name
        for name, tensor in tensors.items()
        if _FUSED_EXPERTS.search(name) and len(tensor.shape) == 3
    }
    for name, layer in left.items():
        is_dense = (
            tensors[name].dtype in _DENSE
            and not {f"{layer}.weight_scale", f"{layer}_scale"} & tensors.keys()
        )
        if is_dense and not is_ignored(layer, ignored):
            yield Defect(
                name,
                f"was left unquantized ({tensors[name].dtype}), and the recipe does not ignore it",
            )

"""What lies beside a variant's checkpoint: what it was made from, how, and what came out."""

from pydantic import Field

from bitbench.study.base import Record
from bitbench.study.recipe import Recipe

MANIFEST_FORMAT = 1
# History of MANIFEST_FORMAT:
#   1  first published form


class CalibrationFacts(Record):
    description: str
    content_hash: str
    samples: int | None = None  # that were really used: short texts give fewer than asked for
    tokens: int | None = None  # in all samples together


class LayerError(Record):
    """How far a layer's output moved, in the method's own measure. `before`: without the method (AWQ tells it)."""

    layer: str
    method: str
    error: float
    before: float | None = None


class WorkerFacts(Record):
    """What a backend says about its work."""

    versions: dict[str, str]
    peak_memory_bytes: int | None = None  # resident, of the worker alone
    peak_device_bytes: int | None = None
    samples: int | None = None
    tokens: int | None = None
    layer_errors: tuple[LayerError, ...] = ()
    rounded_instead: tuple[str, ...] = ()  # layers that GPTQ could not solve and rounded to the nearest
    unreached: tuple[str, ...] = ()  # experts of a mixture that no token of the calibration text came to
    index_bits_per_weight: float | None = None  # of VPTQ: without codebooks, which small layers pay dearly for
    # Tensors whose rows do not fit the type of a GGUF recipe, counted by what llama.cpp chose: "q5_0 instead of q4_K".
    stored_otherwise: dict[str, int] = Field(default_factory=dict)


class StoredBits(Record):
    """Bits per weight as stored, scales and zero points included."""

    linear_layers: float | None = None  # those that were quantized
    whole_model: float | None = None


class Manifest(Record):
    format: int = MANIFEST_FORMAT
    key: str
    model: str
    model_hash: str
    recipe: Recipe
    calibration: CalibrationFacts | None = None
    seed: int
    created_at: str
    seconds: float
    work: WorkerFacts
    bits_per_weight: StoredBits
    weight_bytes: int
    size_bytes: int
    content_hash: str
    files: dict[str, str]  # name to sha256

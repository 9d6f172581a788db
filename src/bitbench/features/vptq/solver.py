"""One linear layer to VPTQ: its weights and what calibration saw of its inputs in, codebooks and indices out, errors
passed on column by column.

1. The columns in order of what they matter, normalised where asked; the Hessian is scaled along with them. 2. Main
codebook by k-means, each vector weighted by the Hessian of its column. 3. Column by column, errors passed on to later
columns; what is left over gives the residual codebook; then once more. 4. In turn: entries refitted to the layer's
output for the indices as they are, indices improved for those entries. 5. Entries rounded to what is stored and to
what the CPU kernel computes with, and indices assigned again for these.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from bitbench.features.vptq.codebooks import Book, Coder, Dot, combine_codebooks, kmeans, refit_codebooks
from bitbench.features.vptq.layout import Doubles, Floats, Outliers, VptqLayer, dequantize_layout
from bitbench.features.vptq.packed import INT8_MAX

# Column number and what it should be, [outputs]; gives what it becomes.
Quantize: TypeAlias = Callable[[int, Floats], Floats]

_BLOCK = 128  # columns whose corrections are done at once


def error_factor(hessian: Doubles) -> Floats:
    """U of H^-1 = U^T U, upper triangular; H is positive definite. Row k says how the error of column k spreads."""
    inverse = np.linalg.inv(hessian)
    return np.ascontiguousarray(np.linalg.cholesky((inverse + inverse.T) / 2).T, dtype=np.float32)


def quantize_columns(columns: Floats, factor: Floats, quantize: Quantize) -> Floats:
    """What the columns [in, out] become; `quantize` sees each with the errors of those before it made up for."""
    wanted, done = columns.copy(), np.empty_like(columns)
    for start in range(0, len(columns), _BLOCK):
        stop = min(start + _BLOCK, len(columns))
        errors = np.empty((stop - start, columns.shape[1]), dtype=np.float32)
        for k in range(start, stop):
            done[k] = quantize(k, wanted[k])
            errors[k - start] = (wanted[k] - done[k]) / factor[k, k]
            wanted[k + 1 : stop] -= np.outer(factor[k, k + 1 : stop], errors[k - start])
        wanted[stop:] -= factor[start:stop, stop:].T @ errors
    return done


def improve_columns(columns: Floats, now: Floats, hessian: Floats, quantize: Quantize) -> Floats:
    """One round in which each column is quantized anew, all others being as they are.

    `quantize` is given what would be best for a column, and the layer's error falls with every vector that comes
    nearer to it than it was.
    """
    done = now.copy()
    slope = hessian @ (columns - done)
    for start in range(0, len(columns), _BLOCK):
        block = slice(start, min(start + _BLOCK, len(columns)))
        here, before = slope[block].copy(), done[block].copy()
        for k in range(block.start, block.stop):
            done[k] = quantize(k, done[k] + here[k - start] / hessian[k, k])
            here -= np.outer(hessian[block, k], done[k] - before[k - start])
        slope -= hessian[:, block] @ (done[block] - before)
    return done


_REFIT_ITERATIONS = 10  # of conjugate gradients; 40 changed the error of SmolLM2's layers in the fifth digit
_Number = TypeVar("_Number", np.float32, np.float64)


@dataclass(frozen=True)
class Settings:
    main: int = 4096
    residual: int = 256  # 0: none
    vector: int = 8
    normalize: bool = False
    outliers: float = 0.0  # share of the columns
    outlier_entries: int = 4096
    outlier_vector: int = 4
    iterations: int = 8
    rounds: int = 2
    damping: float = 0.01


@dataclass(frozen=True)
class Solved:
    layer: VptqLayer
    proxy_error: float  # of the layer's output on the calibration text, relative


def quantize_layer(
    weight: Floats,
    hessian: Doubles,
    settings: Settings,
    rng: np.random.Generator,
    *,
    bias: Floats | None = None,
    dot: Dot = np.dot,
) -> Solved:
    """`weight` is [out, in], `hessian` is E[x x^T] over the inputs of this layer."""
    scale, offset = _normalisation(weight) if settings.normalize else (None, None)
    normal = weight.astype(np.float64) - (0 if offset is None else offset)
    curvature = hessian
    if scale is not None:
        normal, curvature = normal / scale, hessian * scale * scale[:, np.newaxis]
    curvature = _damped(curvature, settings.damping)
    order = np.argsort(-np.diag(curvature), kind="stable")
    columns = _padded(normal[:, order], settings.vector)
    coders = _solve(columns, np.ascontiguousarray(curvature[np.ix_(order, order)]), settings, rng, dot)
    layer = _as_layer(weight.shape, coders, order, scale=scale, offset=offset, bias=bias)
    return Solved(layer, solver_proxy_error(weight, dequantize_layout(layer), hessian))


def solver_proxy_error(weight: Floats | Doubles, quantized: Doubles, hessian: Doubles) -> float:
    """tr(D H D^T) / tr(W H W^T): the error of the layer's output relative to the output itself."""
    exact = weight.astype(np.float64)
    wrong = quantized - exact
    return float(np.vdot(wrong @ hessian, wrong) / max(np.vdot(exact @ hessian, exact), np.finfo(np.float64).tiny))


def _normalisation(weight: Floats) -> tuple[Floats, Floats]:
    """Deviation and mean of each column, as they will be stored."""
    deviation = weight.std(axis=0, dtype=np.float64)
    return _stored(np.where(deviation > 0, deviation, 1.0)), _stored(weight.mean(axis=0, dtype=np.float64))


def _stored(values: npt.NDArray[_Number]) -> Floats:
    """As half precision keeps it."""
    return values.astype(np.float16).astype(np.float32)


def _damped(hessian: Doubles, damping: float) -> Doubles:
    """Positive definite, also where calibration never met a column."""
    mean = float(np.diag(hessian).mean()) or 1.0
    return hessian + damping * mean * np.eye(len(hessian))


def _padded(normal: Doubles, vector: int) -> Floats:
    """[in, out], the outputs filled up with zeros to whole vectors."""
    padding = -normal.shape[0] % vector
    return np.ascontiguousarray(np.pad(normal, ((0, padding), (0, 0))).T, dtype=np.float32)


def _solve(columns: Floats, hessian: Doubles, settings: Settings, rng: np.random.Generator, dot: Dot) -> list[Coder]:
    factor, curvature = error_factor(hessian), hessian.astype(np.float32)
    outputs, first = columns.shape[1], round(settings.outliers * len(columns))
    diagonal = np.diag(curvature)
    coders = [Coder(settings.vector, first, len(columns) - first, dot)]
    if first:
        coders.insert(0, Coder(settings.outlier_vector, 0, first, dot))

    def learn(coder: Coder, wanted: Floats, entries: int) -> None:
        vectors = wanted[coder.first : coder.first + coder.columns].reshape(-1, coder.vector)
        weights = np.repeat(diagonal[coder.first : coder.first + coder.columns], outputs // coder.vector)
        coder.add_stage(kmeans(vectors, weights, entries, rng, iterations=settings.iterations, dot=dot), outputs)

    if first:
        learn(coders[0], columns, settings.outlier_entries)
    learn(coders[-1], columns, settings.main)
    now = _encode(columns, factor, coders)
    if settings.residual:
        learn(coders[-1], _left_over(columns, factor, coders), settings.residual)
        now = _encode(columns, factor, coders)
    for _ in range(settings.rounds):
        books = _books(coders)
        _replace(coders, refit_codebooks(books, columns, curvature, iterations=_REFIT_ITERATIONS))
        now = combine_codebooks(books, [entries for coder in coders for entries in coder.stages], columns.shape)
        now = _improve(columns, now, curvature, coders)
    _replace(coders, [_on_grid(entries) for coder in coders for entries in coder.stages])
    now = combine_codebooks(_books(coders), [entries for coder in coders for entries in coder.stages], columns.shape)
    _improve(columns, now, curvature, coders)
    return coders


def _coder_of(coders: Sequence[Coder], k: int) -> Coder:
    return coders[0] if k < coders[-1].first else coders[-1]


def _encode(columns: Floats, factor: Floats, coders: Sequence[Coder]) -> Floats:
    return quantize_columns(columns, factor, lambda k, wanted: _coder_of(coders, k).encode(k, wanted))


def _left_over(columns: Floats, factor: Floats, coders: Sequence[Coder]) -> Floats:
    """What each column lacked when its turn came."""
    lacking = np.empty_like(columns)

    def note(k: int, wanted: Floats) -> Floats:
        became = _coder_of(coders, k).encode(k, wanted)
        lacking[k] = wanted - became
        return became

    quantize_columns(columns, factor, note)
    return lacking


def _improve(columns: Floats, now: Floats, hessian: Floats, coders: Sequence[Coder]) -> Floats:
    return improve_columns(columns, now, hessian, lambda k, wanted: _coder_of(coders, k).improve(k, wanted))


def _books(coders: Sequence[Coder]) -> list[Book]:
    return [book for coder in coders for book in coder.books]


def _replace(coders: Sequence[Coder], entries: Sequence[Floats]) -> None:
    rest = list(entries)
    for coder in coders:
        count = len(coder.stages)
        coder.replace_stages(rest[:count])
        rest = rest[count:]


def _on_grid(centroids: Floats) -> Floats:
    """On the 255 steps of int8 that the CPU kernel keeps, and in the half precision that is stored."""
    step = float(np.abs(centroids).max()) / INT8_MAX or 1.0
    return _stored(np.rint(centroids / step) * step)


def _as_layer(
    shape: tuple[int, ...],
    coders: Sequence[Coder],
    order: npt.NDArray[np.int64],
    *,
    scale: Floats | None,
    offset: Floats | None,
    bias: Floats | None,
) -> VptqLayer:
    """Without outliers the columns go back to their own places, and no permutation has to be stored."""
    main = coders[-1]
    indices = [places.T.astype(np.uint16) for places in main.places]
    outliers = None
    if len(coders) > 1:
        outliers = Outliers(coders[0].stages[0], coders[0].places[0].T.astype(np.uint16))
    else:
        indices = [places[:, np.argsort(order)] for places in indices]
    has_residual = len(indices) > 1
    return VptqLayer(
        in_features=shape[1],
        out_features=shape[0],
        centroids=main.stages[0][np.newaxis],
        indices=indices[0][np.newaxis],
        residual_centroids=main.stages[1][np.newaxis] if has_residual else None,
        residual_indices=indices[1][np.newaxis] if has_residual else None,
        outliers=outliers,
        permutation=order if outliers else None,
        weight_scale=scale,
        weight_bias=offset,
        bias=bias,
    )

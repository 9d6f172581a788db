"""Columns are quantized one after the other, and each one's error is made up for by those that follow (GPTQ)."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from bitbench.features.vptq.layout import Doubles, Floats

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

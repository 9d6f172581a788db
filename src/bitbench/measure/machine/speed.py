"""How fast is the machine right now? A fixed piece of work around each trial, as a covariate and a diagnosis."""

import time

import numpy as np

MATRIX_BYTES = 64 * 2**20  # far beyond a private cache: bound by reading memory, as decoding is
READING_S = 0.150
_COLUMNS = 4096


class SpeedProbe:
    """A float32 matrix-vector product on as many threads as numpy's BLAS has, which is as many as the engines take."""

    def __init__(self) -> None:
        self._matrix = np.ones((MATRIX_BYTES // 4 // _COLUMNS, _COLUMNS), dtype=np.float32)
        self._vector = np.ones(_COLUMNS, dtype=np.float32)
        self._result = np.empty(self._matrix.shape[0], dtype=np.float32)
        self.read()  # page faults, threads

    def read(self, reading_s: float = READING_S) -> float:
        """Mean seconds of one product; takes `reading_s`."""
        began = time.perf_counter()
        products = 0
        while (elapsed := time.perf_counter() - began) < reading_s:
            np.dot(self._matrix, self._vector, out=self._result)
            products += 1
        return elapsed / products

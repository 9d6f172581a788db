"""How far one next-token distribution is from another, from the log-probabilities that were stored.

An engine gives the K likeliest tokens at each place, and the one that stands there, not the whole vocabulary. So the
KL divergence is computed over a coarser distribution: every token whose probability is known from both sides is an
event of its own, and all others together are one more, whose mass on each side is what is left to 1. Lumping can only
lower a KL divergence (log-sum inequality): the figure is a lower bound, exactly 0 for equal distributions, and the
closer the more mass the shared tokens hold.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

# Log-probabilities come in 32 bits: what is left of 1 after subtracting up to K of them is no better known than this.
LEAST_REST = 1e-6
AT_ONCE = 1024  # tokens; each needs K × K comparisons


@dataclass(frozen=True)
class Scores:
    """The rows of one config as arrays; tokens in the order of windows and positions."""

    window: Integers
    token: Integers
    logprob: Floats
    top_tokens: Integers  # tokens × K
    top_logprobs: Floats

    @property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.logprob).all() and np.isfinite(self.top_logprobs).all())

    def among(self, windows: npt.ArrayLike) -> "Scores":
        """The rows of these windows alone."""
        return _part(self, np.isin(self.window, windows))


def scores_of(rows: pa.Table) -> Scores:
    def matrix(name: str) -> npt.NDArray[np.generic]:
        flat: npt.NDArray[np.generic] = rows[name].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return flat.reshape(rows.num_rows, -1)

    return Scores(
        window=np.asarray(rows["window"].to_numpy(), dtype=np.int64),
        token=np.asarray(rows["token"].to_numpy(), dtype=np.int64),
        logprob=np.asarray(rows["logprob"].to_numpy(), dtype=np.float64),
        top_tokens=np.asarray(matrix("top_tokens"), dtype=np.int64),
        top_logprobs=np.asarray(matrix("top_logprobs"), dtype=np.float64),
    )


def divergence(baseline: Scores, other: Scores) -> Floats:
    """KL(baseline ‖ other) at each token, in nats; see the module's docstring."""
    result = np.empty(len(baseline.token))
    for first in range(0, len(result), AT_ONCE):
        part = slice(first, first + AT_ONCE)
        result[part] = _divergence(_part(baseline, part), _part(other, part))
    return result


def _part(scores: Scores, part: slice | npt.NDArray[np.bool_]) -> Scores:
    return Scores(
        scores.window[part],
        scores.token[part],
        scores.logprob[part],
        scores.top_tokens[part],
        scores.top_logprobs[part],
    )


def _divergence(baseline: Scores, other: Scores) -> Floats:
    same = baseline.top_tokens[:, :, np.newaxis] == other.top_tokens[:, np.newaxis, :]
    shared, place = same.any(axis=2), same.argmax(axis=2)
    log_p = baseline.top_logprobs
    log_q = np.take_along_axis(other.top_logprobs, place, axis=1)
    p, q = np.where(shared, np.exp(log_p), 0.0), np.where(shared, np.exp(log_q), 0.0)
    terms = np.where(shared, p * (log_p - log_q), 0.0).sum(axis=1)
    mass_p, mass_q = p.sum(axis=1), q.sum(axis=1)
    # The token of the text is known from both sides even where it is not among the top of both.
    alone = ~(shared & (baseline.top_tokens == baseline.token[:, np.newaxis])).any(axis=1)
    own_p, own_q = np.where(alone, np.exp(baseline.logprob), 0.0), np.where(alone, np.exp(other.logprob), 0.0)
    terms += own_p * np.where(alone, baseline.logprob - other.logprob, 0.0)
    rest_p = np.maximum(1.0 - mass_p - own_p, LEAST_REST)
    rest_q = np.maximum(1.0 - mass_q - own_q, LEAST_REST)
    terms += rest_p * (np.log(rest_p) - np.log(rest_q))
    return np.asarray(np.maximum(terms, 0.0))  # below zero only by rounding

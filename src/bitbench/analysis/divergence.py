"""Bounds of the KL divergence from the baseline, if each side lists only its likeliest tokens.

A token is *known* at a position if both sides listed its probability: it is among the top K of
both, or it is the token of the text. Let p be the baseline's probabilities, q the other side's, and
r the share of 1 that the known tokens leave:

    KL(p ‖ q) = Σ over known tokens of p log(p/q)  +  r_p log(r_p/r_q)
                +  r_p KL(rest of p ‖ rest of q)

The first two terms are the **lower bound**, because the last one is never negative (log-sum
inequality). They are 0 for equal distributions and exact if all tokens are known.

**Upper bound.** Let log(p/q) of the tokens in the rest lie within a range of width w. Then the last
divergence is at most w²/8 (Hoeffding's lemma), so the upper bound is the lower one + r_p w²/8. No
server reports w. It is taken from the same position: the range of log(p/q) over the known tokens
and over the tokens that only one side listed. For the latter, the other side's probability is at
most its K-th. That is an assumption. It holds with a margin if changes of logits are spread evenly
over tokens: w²/8 is then several times their variance, of which the rest contributes half.
"""

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bitbench.analysis.intervals import estimate_t_mean
from bitbench.analysis.results.estimate import Estimate

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

# Log-probabilities have 32 bits. The rest of 1 after subtracting up to K of them is not more
# precise.
LEAST_REST = 1e-6
AT_ONCE = 1024  # tokens, each with K entries on both sides
HOEFFDING = 8


@dataclass(frozen=True)
class Scores:
    """The rows of one config as arrays, in the order of windows and positions."""

    window: Integers
    token: Integers
    logprob: Floats
    top_tokens: Integers  # tokens × K
    top_logprobs: Floats

    @property
    def is_finite(self) -> bool:
        """Return True if all log-probabilities are finite."""
        return bool(np.isfinite(self.logprob).all() and np.isfinite(self.top_logprobs).all())

    def select_windows(self, windows: npt.ArrayLike) -> "Scores":
        """Return only the rows of these windows."""
        return self.part(np.isin(self.window, windows))

    def part(self, rows: slice | Booleans) -> "Scores":
        return Scores(*(getattr(self, column.name)[rows] for column in fields(self)))


@dataclass(frozen=True)
class Divergence:
    """KL(baseline ‖ other) at each token, in nats, with the known share of the baseline's mass."""

    lower: Floats
    upper: Floats
    mass: Floats

    def part(self, tokens: Booleans) -> "Divergence":
        return Divergence(self.lower[tokens], self.upper[tokens], self.mass[tokens])


def make_scores(rows: pa.Table) -> Scores:
    """Return the scored tokens of a table as arrays."""

    def matrix(name: str) -> npt.NDArray[np.generic]:
        flat: npt.NDArray[np.generic] = (
            rows[name].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        )
        return flat.reshape(rows.num_rows, -1)

    return Scores(
        window=np.asarray(rows["window"].to_numpy(), dtype=np.int64),
        token=np.asarray(rows["token"].to_numpy(), dtype=np.int64),
        logprob=np.asarray(rows["logprob"].to_numpy(), dtype=np.float64),
        top_tokens=np.asarray(matrix("top_tokens"), dtype=np.int64),
        top_logprobs=np.asarray(matrix("top_logprobs"), dtype=np.float64),
    )


def divergence(baseline: Scores, other: Scores) -> Floats:
    """Return the lower bound at each token."""
    return estimate_divergence_bounds(baseline, other).lower


def estimate_divergence_bounds(baseline: Scores, other: Scores) -> Divergence:
    """Return both bounds at each token. See the module's docstring."""
    parts = []
    for first in range(0, len(baseline.token), AT_ONCE):
        rows = slice(first, first + AT_ONCE)
        parts.append(_estimate_bounds(baseline.part(rows), other.part(rows)))
    return Divergence(
        lower=np.concatenate([part.lower for part in parts]),
        upper=np.concatenate([part.upper for part in parts]),
        mass=np.concatenate([part.mass for part in parts]),
    )


def _estimate_bounds(baseline: Scores, other: Scores) -> Divergence:
    index = _find_tokens(baseline.top_tokens, other.top_tokens)
    shared = index >= 0
    log_p = baseline.top_logprobs
    listed = np.take_along_axis(other.top_logprobs, np.maximum(index, 0), axis=1)
    log_q = np.where(shared, listed, _get_least_listed(other))
    p = np.where(shared, np.exp(log_p), 0.0)
    q = np.where(shared, np.exp(log_q), 0.0)
    # Both sides know the token of the text, even if it is not among the top of both.
    is_alone = ~(shared & (baseline.top_tokens == baseline.token[:, np.newaxis])).any(axis=1)
    text_p = np.where(is_alone, np.exp(baseline.logprob), 0.0)
    text_q = np.where(is_alone, np.exp(other.logprob), 0.0)
    text_change = baseline.logprob - other.logprob
    mass_p = p.sum(axis=1) + text_p
    mass_q = q.sum(axis=1) + text_q
    rest_p = np.maximum(1.0 - mass_p, LEAST_REST)
    rest_q = np.maximum(1.0 - mass_q, LEAST_REST)
    known_part = (p * (log_p - log_q)).sum(axis=1) + text_p * text_change
    rest_part = rest_p * np.log(rest_p / rest_q)
    lower = np.maximum(known_part + rest_part, 0.0)  # below zero only by rounding
    width = _compute_change_range(baseline, other, log_p - log_q)
    upper = lower + rest_p * width**2 / HOEFFDING
    return Divergence(lower, upper, np.minimum(mass_p, 1.0))


def _get_least_listed(side: Scores) -> Floats:
    """Return the K-th log-probability of each position: no unlisted token can have more."""
    return np.asarray(side.top_logprobs.min(axis=1, keepdims=True))


def _compute_change_range(baseline: Scores, other: Scores, changes: Floats) -> Floats:
    """Return the width of the range of log(p/q) at each position.

    `changes` has log(p/q) of the baseline's tokens.
    """
    text_change = (baseline.logprob - other.logprob)[:, np.newaxis]
    is_shared = _find_tokens(other.top_tokens, baseline.top_tokens) >= 0
    of_other = np.where(is_shared, text_change, _get_least_listed(baseline) - other.top_logprobs)
    every = np.concatenate([changes, of_other, text_change], axis=1)
    return np.asarray(every.max(axis=1) - every.min(axis=1))


def _find_tokens(tokens: Integers, listed: Integers) -> Integers:
    """Return the index of each token in its row of `listed`, or -1 if it is not listed."""
    order = np.argsort(listed, axis=1)
    span = max(int(tokens.max(initial=0)), int(listed.max(initial=0))) + 1
    row = np.arange(len(listed))[:, np.newaxis] * span  # makes one sorted list of all rows
    keys = (row + np.take_along_axis(listed, order, axis=1)).ravel()
    targets = (row + tokens).ravel()
    positions = np.minimum(np.searchsorted(keys, targets), len(keys) - 1)
    index = np.where(keys[positions] == targets, order.ravel()[positions], -1)
    return np.asarray(index.reshape(tokens.shape))


def compute_window_means(window: Integers, values: Floats) -> Floats:
    """Return the mean of each window in the rows.

    If all windows have the same number of tokens, the mean of these is the mean over tokens.
    """
    _, index, counts = np.unique(window, return_inverse=True, return_counts=True)
    return np.asarray(np.bincount(index, values) / counts)


def estimate_divergence(
    lower: Floats, upper: Floats, confidence: float, least_value: float = 0.0
) -> Estimate:
    """Return the mean lower bound over windows, with an interval that covers the missing mass.

    The interval begins with the interval of the lower bound, but not below `least_value`. It ends
    with the interval of the upper bound.
    """
    least = estimate_t_mean(lower.tolist(), confidence)
    most = estimate_t_mean(upper.tolist(), confidence)
    if least.low is None:
        return least
    return least.model_copy(update={"low": max(least.low, least_value), "high": most.high})


def has_too_little_mass(estimate: Estimate, limit: float) -> bool:
    """Return True if a divergence exceeds a limit only by what the missing mass may add.

    `estimate` is from `estimate_divergence`.
    """
    if estimate.interval is None or estimate.interval.low <= 0.0:
        return False
    high_of_known = 2 * estimate.value - estimate.interval.low  # Student's t is symmetric
    return high_of_known <= limit < estimate.interval.high

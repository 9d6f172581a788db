"""How much faster is one config than another, from differences within blocks?

Configs that run in the same block share the mood of the machine, so their difference is known better than either
figure. Of each pair a block gives one number, the mean over common rounds of the difference of log speeds:

    m = mean of b such numbers,   s² = their variance,   f = squared standard error of m from the rounds alone
    se² = max((d0·S² + (b − 1)·s²) / (d0 + b − 1) / b,  s² / b,  f),   df = d0 + b − 1

**Lent degrees of freedom.** Two or three blocks say little about s². The pooled variance S² of other pairs is worth d0
further degrees of freedom: those that the other configs of the workload add and then, up to the limit, some of other
workloads (see `lending`). s² / b is a floor for configs that vary more than the others, f for blocks that agree by
luck.

**Shifts.** Configs that were not resident together have no round in common. The baseline is beside every shift, so
they are compared by way of it, block by block: d_ij = d_i0 − d_j0. Such differences vary more; they lend only to each
other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

import numpy as np

from bitbench.analysis.contrasts import Contrasts, Way, find_contrasts
from bitbench.analysis.log_ratio import LogRatio
from bitbench.analysis.log_speeds import LogSpeeds
from bitbench.analysis.variance_shrinkage import LENDING_LIMIT, Pool, from_other_workloads
from bitbench.study.plan import Config


@dataclass(frozen=True, kw_only=True)
class PairedRatio(LogRatio):
    """The speed of `first` / that of `second`: above 1 where `first` is faster, whatever the figure's own direction."""

    first: Config
    second: Config
    blocks: int

    def reversed(self) -> "PairedRatio":
        return replace(self, first=self.second, second=self.first, log_mean=-self.log_mean)


@dataclass(frozen=True)
class PairTable:
    """All pairs of one workload that have two blocks in common; `configs` also names those without such a pair."""

    configs: tuple[Config, ...]
    pairs: tuple[PairedRatio, ...]

    @cached_property
    def _by_name(self) -> dict[tuple[Config, Config], PairedRatio]:
        return {(pair.first, pair.second): pair for pair in self.pairs}

    def between(self, first: Config, second: Config) -> PairedRatio | None:
        """`first` / `second`, in whichever order the pair is kept."""
        if (kept := self._by_name.get((first, second))) is not None:
            return kept
        turned = self._by_name.get((second, first))
        return None if turned is None else turned.reversed()


def paired_ratios(study: Mapping[str, LogSpeeds], baseline: Config | None = None) -> dict[str, PairTable]:
    """The pairs of each workload of a study; workloads lend to each other."""
    contrasts = {workload: find_contrasts(speeds, baseline) for workload, speeds in study.items()}
    return {
        workload: PairTable(
            speeds.configs,
            tuple(
                pair
                for way, own in contrasts[workload].items()
                for pair in _pairs(speeds.configs, own, _loan(contrasts, workload, way))
            ),
        )
        for workload, speeds in study.items()
    }


def lent_degrees_of_freedom(configs: int, blocks: int) -> float:
    """What a pair is lent by the other configs of its workload, where each of them runs in every block."""
    return min(LENDING_LIMIT, (configs - 2) * (blocks - 1))


def _loan(contrasts: Mapping[str, Mapping[Way, Contrasts]], workload: str, way: Way) -> Pool:
    """From other workloads, of pairs that met in the same way."""
    pools = {name: Pool(own[way].pooled_variance, own[way].spare) for name, own in contrasts.items() if way in own}
    own = pools.pop(workload)
    return from_other_workloads(own, pools.values())


def _pairs(configs: tuple[Config, ...], own: Contrasts, others: Pool) -> list[PairedRatio]:
    means = np.nanmean(own.by_block, axis=1)
    blocks = own.blocks
    from_own = np.clip(own.spare - (blocks - 1), 0, LENDING_LIMIT)
    from_others = np.minimum(LENDING_LIMIT - from_own, others.degrees_of_freedom)
    freedom = from_own + from_others + blocks - 1
    lent = from_own * own.pooled_variance + from_others * others.variance
    moderated = (lent + (blocks - 1) * own.variances) / freedom
    known = np.isfinite(own.from_rounds).sum(1)
    from_rounds = np.nansum(own.from_rounds, axis=1) / np.maximum(known, 1)
    squared = np.maximum(np.maximum(moderated, own.variances), from_rounds) / blocks
    return [
        PairedRatio(
            first=configs[own.first[place]],
            second=configs[own.second[place]],
            log_mean=float(means[place]),
            standard_error=sqrt(float(squared[place])),
            degrees_of_freedom=float(freedom[place]),
            blocks=int(blocks[place]),
        )
        for place in range(len(means))
    ]

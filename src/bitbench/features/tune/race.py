"""A search for the best config under limits: who is out, who leads, and how much better another could
still be.

The study's own claims decide (`claims`): after each block there is a look, and a config is out when another may be
claimed to be better at this look's α_k / (C − 1), among C configs that were searched. A limit changes who may beat
others: only one whose figures meet the limits does, and leads; one that misses a limit is out by that alone.

- the **leader** is the one that meets the limits, is not beaten and has the best mean;
- the **shortfall** is what the others that are left could be better than it by: the largest upper end of their ratios
  to it, one-sided at α_k / (C − 1).

The best of those that meet the limits is wrongly beaten, or better than the leader by more than the shortfall, only
if one of its C − 1 ratios is off by more than its bound at one of the looks. The bounds of all looks spend α
together, so both hold with 1 − α at once, whichever look the search ends with.

Whether a config meets the limits is known better with each block. It is judged anew at each look, and the claims are
then made again from the first: a config that turns out to miss a limit has beaten no other.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import exp

from bitbench.analysis.claims import Look, claim, claimable_pair, nothing_claimed
from bitbench.analysis.pairs import PairedRatio, PairTable
from bitbench.analysis.results.estimate import Finding, Verdict
from bitbench.analysis.results.recommendation import Judged
from bitbench.analysis.sequential import PrimaryMetric, baseline_of, looks_taken, pairs_by_workload
from bitbench.features.tune.types import RaceEnd
from bitbench.records.folder import StudyRecords
from bitbench.study.plan import Config


@dataclass(frozen=True)
class Admission:
    """`able`: may still meet every limit. `fit`: its figures meet them all, so that it may beat others and lead."""

    able: frozenset[Config]
    fit: frozenset[Config]


@dataclass(frozen=True)
class Race:
    """What is known after the last look. Without a look no config is beaten, and the leader is not known."""

    left: tuple[Config, ...]  # may be the best of those that meet the limits
    leader: Config | None
    shortfall: (
        float | None
    )  # 0.03: with confidence, none that is left is more than 3 % better; None: not known
    end: RaceEnd | None  # None: it goes on


def race_of(
    of: StudyRecords, judged: Iterable[Judged], primary_metric: PrimaryMetric, within: float
) -> Race:
    """Of a study with one workload."""
    (workload,) = of.study.workloads
    baseline = baseline_of(of.plan)
    looked = []
    for look, seen in looks_taken(of.plan, of.trials, of.starts_and_quality):
        alone = PairTable(tuple(dict.fromkeys(trial.point.config for trial in seen)), ())
        looked.append(
            (look, pairs_by_workload(seen, primary_metric, baseline).get(workload.name, alone))
        )
    configs = dict.fromkeys(point.config for point in of.plan.points)
    return race(looked, configs, race_admission(judged), within=within)


def race_admission(judged: Iterable[Judged]) -> Admission:
    """One whose trials failed in part is not able: it would fail in service, too."""
    able = [
        entry for entry in judged if entry.verdict is not Verdict.MISSED and not entry.failed_trials
    ]
    fit = [entry for entry in able if all(_figure_meets(finding) for finding in entry.findings)]
    return Admission(
        frozenset(entry.config for entry in able), frozenset(entry.config for entry in fit)
    )


def _figure_meets(finding: Finding) -> bool:
    return finding.verdict is Verdict.MET or (
        finding.value is not None and finding.value <= finding.limit
    )


def race(
    looked: Sequence[tuple[Look, PairTable]],
    configs: Collection[Config],
    admission: Admission,
    *,
    within: float,
) -> Race:
    """`configs`: all that are searched, with a result or not. `within`: a shortfall that is small enough to end."""
    able = tuple(config for config in configs if config in admission.able)
    claims = nothing_claimed(tuple(configs), None)
    for look, table in looked:
        raced = PairTable(
            table.configs, tuple(pair for pair in table.pairs if _decides(pair, admission))
        )
        claims = claim(raced, None, look.alpha, earlier=claims)
    if not looked:
        return Race(able, None, None, None)
    look, table = looked[-1]
    left = tuple(config for config in able if config in claims.possible_bests) or able
    measured = [config for config in left if config in table.configs]
    leader = _leader(table, [config for config in measured if config in admission.fit])
    level = look.alpha / max(len(configs) - 1, 1)
    shortfall = None if leader is None else _shortfall(table, leader, measured, level)
    return Race(left, leader, shortfall, _end(look, left, leader, shortfall, within))


def _decides(pair: PairedRatio, admission: Admission) -> bool:
    """Whether the better of the two may beat the other."""
    better = pair.first if pair.log_mean > 0 else pair.second
    return better in admission.fit and {pair.first, pair.second} <= admission.able


def _log_ratio(table: PairTable, config: Config, other: Config) -> float:
    """0 where the two have no two blocks in common."""
    pair = table.between(config, other)
    return 0.0 if pair is None else pair.log_mean


def _leader(table: PairTable, candidates: Sequence[Config]) -> Config | None:
    """By the sum of its ratios to the others, which is the order of the means where all have run in all blocks."""
    return max(
        candidates,
        key=lambda candidate: sum(_log_ratio(table, candidate, other) for other in candidates),
        default=None,
    )


def _shortfall(
    table: PairTable, leader: Config, left: Sequence[Config], level: float
) -> float | None:
    """None where one that is left cannot be compared with the leader."""
    highest = 0.0
    for other in left:
        if other == leader:
            continue
        pair = claimable_pair(table, other, leader)
        if pair is None:
            return None
        highest = max(highest, pair.log_mean + pair.half_width(1 - 2 * level))
    return exp(highest) - 1


def _end(
    look: Look,
    left: Sequence[Config],
    leader: Config | None,
    shortfall: float | None,
    within: float,
) -> RaceEnd | None:
    if not left:
        return RaceEnd.NONE_MEETS
    if leader is not None and shortfall is not None and shortfall <= within:
        return RaceEnd.FOUND
    return RaceEnd.BUDGET if look.is_last else None

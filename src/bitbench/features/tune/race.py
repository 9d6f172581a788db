"""Decisions in a search for the best config under limits: the configs that are out, the leader, and
how much better another config could still be.

The study's own claims decide (`analysis.claims`). After each block there is an interim analysis. A
config is out when another can be claimed to be better at the analysis's α_k / (C − 1), for C
configs in the search. Limits change which configs may beat others: only a config whose values meet
the limits does, and only such a config leads. A config that misses a limit is out by that alone.

- The **leader** meets the limits, is not beaten, and has the best mean.
- The **shortfall** bounds how much better than the leader a remaining config can be. It is the
  largest upper end of their ratios to the leader, one-sided at α_k / (C − 1).

Two errors are possible: the best config within the limits is wrongly beaten, or it is better than
the leader by more than the shortfall. Either needs one of its C − 1 ratios to be off by more than
its bound in one of the analyses. The bounds of all analyses spend α together. So both statements
hold at once with 1 − α, whichever analysis ends the search.

Each block gives more evidence on whether a config meets the limits. Each analysis judges that again
and makes all claims again from the first. A config that turns out to miss a limit has beaten
nothing.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import exp

from bitbench.analysis.claims import Look, find_claimable_pair, make_undecided_claims, update_claims
from bitbench.analysis.pairs import PairedRatio, PairTable
from bitbench.analysis.results.estimate import Finding, Verdict
from bitbench.analysis.results.recommendation import Judged
from bitbench.analysis.sequential import (
    PrimaryMetric,
    collect_pairs_by_workload,
    find_baseline,
    list_looks_with_trials,
)
from bitbench.features.tune.types import RaceEnd
from bitbench.records.folder import StudyRecords
from bitbench.study.plan import Config


@dataclass(frozen=True)
class Admission:
    """The configs that may still meet every limit (`able`), and the configs whose values meet them
    all (`fit`). Only the latter may beat others and lead."""

    able: frozenset[Config]
    fit: frozenset[Config]


@dataclass(frozen=True)
class Race:
    """The state after the newest interim analysis. Before the first one, no config is beaten and
    a leader is missing."""

    left: tuple[Config, ...]  # may be the best within the limits
    leader: Config | None
    shortfall: float | None  # 0.03: with confidence, no remaining config is more than 3 % better
    end: RaceEnd | None  # None while the search continues


def judge_race(
    records: StudyRecords, judged: Iterable[Judged], primary_metric: PrimaryMetric, within: float
) -> Race:
    """Return the race of a study with one workload."""
    (workload,) = records.study.workloads
    plan = records.plan
    baseline = find_baseline(plan)
    analyses = []
    for look, trials in list_looks_with_trials(plan, records.trials, records.starts_and_quality):
        table = collect_pairs_by_workload(trials, primary_metric, baseline).get(workload.name)
        if table is None:
            table = PairTable(tuple(dict.fromkeys(trial.point.config for trial in trials)), ())
        analyses.append((look, table))
    configs = dict.fromkeys(point.config for point in plan.points)
    return race(analyses, configs, find_admission(judged), within=within)


def find_admission(judged: Iterable[Judged]) -> Admission:
    """Return the configs that may win. A config with failed trials may not, since it would fail in
    service too."""
    able: set[Config] = set()
    fit: set[Config] = set()
    for entry in judged:
        if entry.verdict is Verdict.MISSED or entry.failed_trials:
            continue
        able.add(entry.config)
        if all(_is_within_limit(finding) for finding in entry.findings):
            fit.add(entry.config)
    return Admission(frozenset(able), frozenset(fit))


def _is_within_limit(finding: Finding) -> bool:
    """Return True if the measured value meets its limit, even if its interval does not."""
    if finding.verdict is Verdict.MET:
        return True
    return finding.value is not None and finding.value <= finding.limit


def race(
    analyses: Sequence[tuple[Look, PairTable]],
    configs: Collection[Config],
    admission: Admission,
    *,
    within: float,
) -> Race:
    """Return the state after these interim analyses. `configs` are all configs of the search, with
    results or not. The search ends at a shortfall of `within` or less."""
    able = tuple(config for config in configs if config in admission.able)
    if not analyses:
        return Race(able, None, None, None)
    claims = make_undecided_claims(tuple(configs), None)
    for look, table in analyses:
        pairs = tuple(pair for pair in table.pairs if _is_decisive(pair, admission))
        claims = update_claims(PairTable(table.configs, pairs), None, look.alpha, earlier=claims)
    look, table = analyses[-1]
    left = tuple(config for config in able if config in claims.possible_bests) or able
    measured = [config for config in left if config in table.configs]
    leader = _find_leader(table, [config for config in measured if config in admission.fit])
    shortfall = None
    if leader is not None:
        level = look.alpha / max(len(configs) - 1, 1)
        shortfall = _find_shortfall(table, leader, measured, level)
    return Race(left, leader, shortfall, _find_race_end(look, left, leader, shortfall, within))


def _is_decisive(pair: PairedRatio, admission: Admission) -> bool:
    """Return True if the better config of the pair may beat the other."""
    better = pair.first if pair.log_mean > 0 else pair.second
    return better in admission.fit and {pair.first, pair.second} <= admission.able


def _log_ratio(table: PairTable, config: Config, other: Config) -> float:
    """Return the log ratio of two configs, or 0 if they have fewer than two common blocks."""
    pair = table.between(config, other)
    return 0.0 if pair is None else pair.log_mean


def _find_leader(table: PairTable, candidates: Sequence[Config]) -> Config | None:
    """Return the candidate with the highest sum of log ratios to the others, or None without
    candidates. If all ran in all blocks, this is the order of the means."""

    def advantage(candidate: Config) -> float:
        return sum(_log_ratio(table, candidate, other) for other in candidates)

    return max(candidates, key=advantage, default=None)


def _find_shortfall(
    table: PairTable, leader: Config, left: Sequence[Config], level: float
) -> float | None:
    """Return the shortfall of the leader, or None if a remaining config cannot be compared with
    it."""
    highest = 0.0
    for other in left:
        if other == leader:
            continue
        pair = find_claimable_pair(table, other, leader)
        if pair is None:
            return None
        highest = max(highest, pair.log_mean + pair.half_width(1 - 2 * level))
    return exp(highest) - 1


def _find_race_end(
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

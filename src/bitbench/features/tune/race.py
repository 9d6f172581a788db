"""A search for the best contender under limits: who is out, who leads, and how much better another could still be.

After each block there is a look, and it may spend a part of the allowed error (`looks`). At a look with α_k, among C
contenders that were searched:

- a contender is **beaten** when another that meets the limits is above it at a one-sided α_k / (C − 1), as in the
  family "may be the best" of `families`;
- the **leader** is the one that meets the limits, is not beaten and has the best mean;
- the **shortfall** is what the others that are left could be better than it by: the largest upper end of their ratios
  to it, one-sided at α_k / (C − 1).

The best of those that meet the limits is wrongly beaten, or better than the leader by more than the shortfall, only if
one of its C − 1 ratios is off by more than its bound at one of the looks. The bounds of all looks spend α together, so
both hold with 1 − α at once, whichever look the search ends with.

Whether a contender meets the limits is known better with each block. It is judged anew at each look, and the race is
then run again from the first: a contender that turns out to miss a limit has beaten no other.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp

from bitbench.analysis.interim_looks import Look
from bitbench.analysis.pairs import PairTable
from bitbench.analysis.results.recommendation import Finding, Judged, LimitVerdict
from bitbench.analysis.sequential import Headline, baseline_of, looks_taken, pair_tables
from bitbench.features.tune.types import RaceEnd
from bitbench.records.study_records import StudyRecords
from bitbench.study.plan import Contender


@dataclass(frozen=True)
class Admission:
    """`able`: may still meet every limit. `fit`: its figures meet them all, so that it may beat others and lead."""

    able: frozenset[Contender]
    fit: frozenset[Contender]


@dataclass(frozen=True)
class Race:
    """What is known after the last look. Without a look no contender is beaten, and the leader is not known."""

    left: tuple[Contender, ...]  # may be the best of those that meet the limits
    beaten_by: Mapping[Contender, Contender]  # the first that was found above it
    leader: Contender | None
    shortfall: float | None  # 0.03: with confidence, none that is left is more than 3 % better; None: not known
    end: RaceEnd | None  # None: it goes on


def race_of(of: StudyRecords, judged: Iterable[Judged], headline: Headline, within: float) -> Race:
    """Of a study with one workload."""
    (workload,) = of.study.workloads
    baseline = baseline_of(of.plan)
    looked = []
    for look, seen in looks_taken(of.plan, of.trials, of.starts_and_quality, baseline):
        alone = PairTable(tuple(dict.fromkeys(trial.cell.contender for trial in seen)), ())
        looked.append((look, pair_tables(seen, headline, baseline).get(workload.name, alone)))
    contenders = dict.fromkeys(cell.contender for cell in of.plan.cells)
    return race(looked, contenders, admission(judged), within=within)


def admission(judged: Iterable[Judged]) -> Admission:
    """One whose trials failed in part is not able: it would fail in service, too."""
    able = [entry for entry in judged if entry.standing is not LimitVerdict.BROKEN and not entry.failed_trials]
    fit = [entry for entry in able if all(_figure_meets(finding) for finding in entry.findings)]
    return Admission(frozenset(entry.contender for entry in able), frozenset(entry.contender for entry in fit))


def _figure_meets(finding: Finding) -> bool:
    return finding.standing is LimitVerdict.MET or (finding.value is not None and finding.value <= finding.limit)


def race(
    looked: Sequence[tuple[Look, PairTable]],
    contenders: Collection[Contender],
    admission: Admission,
    *,
    within: float,
) -> Race:
    """`contenders`: all that are searched, with a result or not. `within`: a shortfall that is small enough to end."""
    beaten_by: dict[Contender, Contender] = {}
    able = [contender for contender in contenders if contender in admission.able]
    for look, table in looked:
        level = _level(look, len(contenders))
        for contender in [contender for contender in able if contender not in beaten_by]:
            above = [other for other in able if other in admission.fit and _is_above(table, other, contender, level)]
            if above:
                beaten_by[contender] = max(above, key=lambda other: _log_ratio(table, other, contender))
    if not looked:
        return Race(tuple(able), {}, None, None, None)
    look, table = looked[-1]
    # Claims of two looks may contradict each other, once in a while; there always is a best.
    left = tuple(contender for contender in able if contender not in beaten_by) or tuple(able)
    measured = [contender for contender in left if contender in table.contenders]
    leader = _leader(table, [contender for contender in measured if contender in admission.fit])
    shortfall = None if leader is None else _shortfall(table, leader, measured, _level(look, len(contenders)))
    return Race(left, beaten_by, leader, shortfall, _end(look, left, leader, shortfall, within))


def _level(look: Look, contenders: int) -> float:
    return look.alpha / max(contenders - 1, 1)


def _is_above(table: PairTable, contender: Contender, other: Contender, level: float) -> bool:
    pair = table.between(contender, other)
    return pair is not None and pair.log_mean > 0 and pair.p_value / 2 < level


def _log_ratio(table: PairTable, contender: Contender, other: Contender) -> float:
    """0 where the two have no two blocks in common."""
    pair = table.between(contender, other)
    return 0.0 if pair is None else pair.log_mean


def _leader(table: PairTable, candidates: Sequence[Contender]) -> Contender | None:
    """By the sum of its ratios to the others, which is the order of the means where all have run in all blocks."""
    return max(
        candidates, key=lambda candidate: sum(_log_ratio(table, candidate, other) for other in candidates), default=None
    )


def _shortfall(table: PairTable, leader: Contender, left: Sequence[Contender], level: float) -> float | None:
    """None where one that is left cannot be compared with the leader."""
    highest = 0.0
    for other in left:
        if other == leader:
            continue
        pair = table.between(other, leader)
        if pair is None:
            return None
        highest = max(highest, pair.log_mean + pair.half_width(1 - 2 * level))
    return exp(highest) - 1


def _end(
    look: Look, left: Sequence[Contender], leader: Contender | None, shortfall: float | None, within: float
) -> RaceEnd | None:
    if not left:
        return RaceEnd.NONE_MEETS
    if leader is not None and shortfall is not None and shortfall <= within:
        return RaceEnd.FOUND
    return RaceEnd.BUDGET if look.is_last else None

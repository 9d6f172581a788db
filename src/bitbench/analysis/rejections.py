"""How many trials of each config were rejected, and what that changed on the affected workloads.

A rejection that depends on a trial's speed would select by outcome. The ratio with all attempts,
rejected ones included, shows whether it did.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from math import exp, log
from statistics import fmean

from bitbench.analysis.pairs import PairTable, TrialKey, collect_pair_tables, make_log_speeds
from bitbench.analysis.ranking import ModelGroup
from bitbench.analysis.results.summary import RatioOfAttempts, Rejections
from bitbench.analysis.sequential import Speeds
from bitbench.records.folder import StudyRecords
from bitbench.records.trial import Outcome, TrialRecord
from bitbench.study.plan import Config

# Share of a config's attempts. Above it, the report also shows the ratio with all attempts.
MOST_REJECTED = 0.1
REJECTED = frozenset({Outcome.CLIENT_BOUND, Outcome.DISTURBED})


def summarize_rejections(
    records: StudyRecords, speeds_by_group: Mapping[ModelGroup, Speeds]
) -> tuple[Rejections, ...]:
    """Return one entry for each config with a trial. Models are compared separately."""
    attempts = [trial for trial in records.trials if _is_attempt(trial)]
    attempted: Counter[Config] = Counter()
    rejected: Counter[Config] = Counter()
    workloads: dict[Config, set[str]] = defaultdict(set)  # with a rejected trial
    for trial in attempts:
        attempted[trial.point.config] += 1
        if trial.outcome in REJECTED:
            rejected[trial.point.config] += 1
            workloads[trial.point.config].add(trial.point.workload)
    many = {config for config in rejected if rejected[config] > MOST_REJECTED * attempted[config]}
    ratios: dict[Config, list[RatioOfAttempts]] = defaultdict(list)
    for group, speeds in speeds_by_group.items():
        baseline = group.baseline
        if baseline is None or many.isdisjoint(group.configs):
            continue
        tables = _collect_attempt_tables(attempts, speeds, baseline)
        for config in group.configs:
            if config != baseline and not many.isdisjoint((config, baseline)):
                affected = workloads[config] | workloads[baseline]
                ratios[config] += _iter_ratios(tables, affected, speeds, config, baseline)
    return tuple(
        Rejections(
            config=config,
            attempted=attempted[config],
            rejected=rejected[config],
            ratios=tuple(ratios.get(config, ())),
        )
        for config in records.plan.configs
        if attempted[config]
    )


def _is_attempt(trial: TrialRecord) -> bool:
    """Return True for a measured trial, except the second trial of a turn: it is not repeated."""
    return trial.kind == "measured" and trial.turn == 0 and trial.outcome is not Outcome.LOST


def _collect_attempt_tables(
    attempts: Sequence[TrialRecord], speeds: Speeds, baseline: Config
) -> dict[str, PairTable]:
    """Return the ratios of all attempts by workload. Attempts of one round are averaged."""
    logs: dict[str, dict[TrialKey, list[float]]] = defaultdict(lambda: defaultdict(list))
    rounds: dict[tuple[str, Config, int], Iterator[int]] = defaultdict(count)
    for trial in attempts:
        value = getattr(trial.metrics, speeds.metric, None)
        if not value:
            continue
        workload = trial.point.workload
        config = trial.point.config
        number = trial.round
        if number is None:
            number = next(rounds[workload, config, trial.block])
        logs[workload][TrialKey(config, trial.block, number)].append(log(value))
    higher_is_better = speeds.standing.primary_metric.higher_is_better
    by_workload = {}
    for workload, by_turn in logs.items():
        figures = {turn: exp(fmean(values)) for turn, values in by_turn.items()}
        by_workload[workload] = make_log_speeds(figures, higher_is_better=higher_is_better)
    return collect_pair_tables(by_workload, baseline)


def _iter_ratios(
    tables: Mapping[str, PairTable],
    workloads: set[str],
    speeds: Speeds,
    config: Config,
    baseline: Config,
) -> Iterator[RatioOfAttempts]:
    """Yield the ratios to the baseline on these workloads, without and with rejected trials."""
    higher_is_better = speeds.standing.primary_metric.higher_is_better
    first, second = (config, baseline) if higher_is_better else (baseline, config)
    for workload, table in tables.items():
        pair = table.between(first, second)
        if workload in workloads and pair is not None:
            yield RatioOfAttempts(
                workload=workload,
                counted=speeds.standing.ratio(workload, config, baseline, speeds.confidence),
                all_attempts=pair.ratio(speeds.confidence),
            )

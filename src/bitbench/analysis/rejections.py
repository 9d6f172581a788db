"""How many trials of each config were rejected, and what that changed on the workloads where it happened.

A rejection that depends on a trial's speed would select by outcome. The ratio with all attempts, rejected ones
included, shows whether it did.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from math import exp, log
from statistics import fmean

from bitbench.analysis.pairs import PairTable, TrialKey, log_speeds, paired_ratios
from bitbench.analysis.results.summary import RatioOfAttempts, Rejections
from bitbench.analysis.sequential import Speeds
from bitbench.records.folder import StudyRecords
from bitbench.records.trial import Outcome, TrialRecord
from bitbench.study.plan import Config

MOST_REJECTED = (
    0.1  # of the attempts of a config; beyond it, the ratio with all attempts is shown as well
)
REJECTED = frozenset({Outcome.CLIENT_BOUND, Outcome.DISTURBED})


def summarize_rejections(
    of: StudyRecords,
    speeds_of: Mapping[Config | None, Speeds],
    configs_of: Mapping[Config | None, Sequence[Config]],
) -> tuple[Rejections, ...]:
    """Return one entry for each config with a trial. Both mappings are by baseline: models are compared apart."""
    attempts = [trial for trial in of.trials if _is_attempt(trial)]
    attempted = Counter(trial.point.config for trial in attempts)
    rejected = Counter(trial.point.config for trial in attempts if trial.outcome in REJECTED)
    many = {config for config in rejected if rejected[config] > MOST_REJECTED * attempted[config]}
    spoiled = {trial.point for trial in attempts if trial.outcome in REJECTED}
    ratios: dict[Config, list[RatioOfAttempts]] = defaultdict(list)
    for baseline, configs in configs_of.items():
        if baseline is None or many.isdisjoint(configs):
            continue
        tables = _tables(attempts, speeds_of[baseline], baseline)
        for config in configs:
            if config != baseline and not many.isdisjoint((config, baseline)):
                met = {point.workload for point in spoiled if point.config in (config, baseline)}
                own = {workload: table for workload, table in tables.items() if workload in met}
                ratios[config] += _ratios(own, speeds_of[baseline], config, baseline)
    return tuple(
        Rejections(
            config=config,
            attempted=attempted[config],
            rejected=rejected[config],
            ratios=tuple(ratios.get(config, ())),
        )
        for config in of.plan.configs
        if attempted[config]
    )


def _is_attempt(trial: TrialRecord) -> bool:
    """The second trial of a turn is not one: it is not repeated."""
    return trial.kind == "measured" and trial.turn == 0 and trial.outcome is not Outcome.LOST


def _tables(
    attempts: Sequence[TrialRecord], speeds: Speeds, baseline: Config
) -> dict[str, PairTable]:
    """Return the ratios of all attempts by workload. Those of one round are averaged."""
    found: dict[str, dict[TrialKey, list[float]]] = defaultdict(lambda: defaultdict(list))
    places: dict[tuple[str, Config, int], Iterator[int]] = defaultdict(count)
    for trial in attempts:
        value = getattr(trial.metrics, speeds.metric, None)
        if not value:
            continue
        workload, config = trial.point.workload, trial.point.config
        number = (
            trial.round if trial.round is not None else next(places[workload, config, trial.block])
        )
        found[workload][TrialKey(config, trial.block, number)].append(log(value))
    higher_is_better = speeds.standing.primary_metric.higher_is_better
    by_workload = {}
    for workload, turns in found.items():
        figures = {turn: exp(fmean(logs)) for turn, logs in turns.items()}
        by_workload[workload] = log_speeds(figures, higher_is_better=higher_is_better)
    return paired_ratios(by_workload, baseline)


def _ratios(
    tables: Mapping[str, PairTable], speeds: Speeds, config: Config, baseline: Config
) -> Iterator[RatioOfAttempts]:
    higher_is_better = speeds.standing.primary_metric.higher_is_better
    first, second = (config, baseline) if higher_is_better else (baseline, config)
    for workload, table in tables.items():
        pair = table.between(first, second)
        if pair is not None:
            yield RatioOfAttempts(
                workload=workload,
                counted=speeds.standing.ratio(workload, config, baseline, speeds.confidence),
                all_attempts=pair.ratio(speeds.confidence),
            )

"""What a setting of an engine changes, where a study runs the same weights with several: bytes, slopes, acceptance."""

from collections.abc import Mapping, Sequence

import numpy as np

from bitbench.analysis.configs import summarize_engine
from bitbench.analysis.intervals import uncertainty
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import SettingSummary
from bitbench.records.study_records import StudyRecords
from bitbench.records.trial import TrialRecord
from bitbench.study.plan import Config, Plan
from bitbench.study.prompts import typical

LEAST_LENGTHS = 3  # through two points every line is exact


def summarize_settings(of: StudyRecords) -> tuple[SettingSummary, ...]:
    """Of configs whose weights also run in another setup of their engine; empty where all is unknown."""
    trials: dict[Config, list[TrialRecord]] = {config: [] for config in with_other_settings(of.plan)}
    for trial in of.trials:
        if trial.counts and trial.point.config in trials:
            trials[trial.point.config].append(trial)
    kv_bytes = {instance.config: size for instance in of.instances if (size := instance.facts.kv_bytes_per_token)}
    contexts = _contexts(of)
    found = []
    for config, own in trials.items():
        counted = summarize_engine(own)
        found.append(
            SettingSummary(
                config=config,
                kv_bytes_per_token=kv_bytes.get(config),
                step_slope=_mean(_slopes(own, contexts), of.study.measure.confidence),
                acceptance_length=counted.acceptance_length if counted else None,
            )
        )
    figures = ((own.kv_bytes_per_token, own.step_slope, own.acceptance_length) for own in found)
    return tuple(found) if any(figure is not None for of_config in figures for figure in of_config) else ()


def with_other_settings(plan: Plan) -> list[Config]:
    """The same under two names is no other setting."""
    setups = {setup.name: setup for setup in plan.study.engines}
    known = [config for config in plan.configs if config.engine in setups]
    settings: dict[tuple[str, str], set[str]] = {}
    for config in known:
        chosen = setups[config.engine].model_dump_json(exclude={"name"})
        settings.setdefault((config.variant, setups[config.engine].engine), set()).add(chosen)
    return [config for config in known if len(settings[config.variant, setups[config.engine].engine]) > 1]


def _contexts(of: StudyRecords) -> dict[str, float]:
    """Of workloads with a single stream: how many tokens precede one of an answer, on average."""
    return {
        workload.name: typical(workload.input_tokens) + typical(workload.output_tokens) / 2
        for workload in of.study.workloads
        if workload.concurrency == 1 and not workload.open_loop and "input_tokens" not in workload.unknown
    }


def _slopes(trials: Sequence[TrialRecord], contexts: Mapping[str, float]) -> list[float]:
    """What a token takes longer for each token of context: of each start the slope of a line through its lengths. None
    of a start with fewer than three."""
    points: dict[str, dict[float, list[float]]] = {}
    for trial in trials:
        at, seconds = contexts.get(trial.point.workload), trial.metrics.tpot_s
        if at is not None and seconds is not None:
            points.setdefault(trial.instance_id, {}).setdefault(at, []).append(seconds)
    return [
        float(np.polyfit(list(lengths), [np.mean(values) for values in lengths.values()], 1)[0])
        for lengths in points.values()
        if len(lengths) >= LEAST_LENGTHS
    ]


def _mean(slopes: Sequence[float], confidence: float) -> Estimate | None:
    """Over starts; an interval that lies below zero is noise and is shown as such."""
    if not slopes:
        return None
    mean, known = float(np.mean(slopes)), uncertainty([[slope] for slope in slopes])
    if known is None:
        return Estimate(value=mean)
    half = known.half_width(confidence)
    return Estimate(value=mean, low=mean - half, high=mean + half, confidence=confidence)

"""Prompts that a prefix cache answered although the study did not ask for it: found out, and not compared."""

from statistics import fmean

import pyarrow as pa
import pyarrow.compute as pc

from bitbench.analysis.results.summary import CachedPrompts
from bitbench.records.study_records import StudyRecords
from bitbench.records.trial import EngineMetrics
from bitbench.study.plan import Point

CACHED = 0.01  # of a trial's prompt tokens: less is a token or two that prompts have in common by chance


def cached_share(counted: EngineMetrics | None, requests: pa.Table) -> float | None:
    """Of the prompt tokens of a trial, what came from a cache: by the engine's own counter, which sees all its clients,
    else by the usage of the answers. None where neither says."""
    cached = counted.cached_tokens if counted is not None else None
    if cached is None:
        cached = pc.sum(requests["cached_tokens"]).as_py()
    asked = pc.sum(requests["input_tokens"]).as_py()
    return None if cached is None or not asked else min(cached / asked, 1.0)


def cached_prompts(of: StudyRecords, point: Point) -> CachedPrompts | None:
    """Over the trials that count; None where none used a cache, or the study asked for one."""
    shares = [trial.cached_share for trial in of.counted(point) if trial.cached_share is not None]
    trials = sum(share >= CACHED for share in shares)
    if not trials or _is_asked_for(of, point):
        return None
    return CachedPrompts(trials=trials, share=fmean(shares))


def _is_asked_for(of: StudyRecords, point: Point) -> bool:
    """By prompts that share a prefix, or by an engine that was started with its cache on."""
    workload = of.study.workload(point.workload)
    if workload.shared_prefix is not None or workload.conversation is not None:
        return True
    own = (instance.facts for instance in of.instances if instance.config == point.config)
    return any(facts.prefix_caching and not facts.was_running for facts in own)

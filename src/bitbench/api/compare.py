"""Compares two study folders, or two variants of one."""

from collections.abc import Callable, Sequence
from pathlib import Path

from bitbench.analysis.gate import parse_condition, parse_metric
from bitbench.analysis.results.comparison import Comparison
from bitbench.analysis.results.facts import Fact
from bitbench.analysis.study_comparison import compare_configs, compare_studies
from bitbench.records.folder import StudyFolder
from bitbench.study.plan import Config, Plan
from bitbench.util.errors import UsageError


def compare_folders(
    baseline: Path,
    candidate: Path | None = None,
    *,
    variants: tuple[str, str] | None = None,
    fail_if: Sequence[str] = (),
    allow: Sequence[Fact] = (),
    metrics: Sequence[str] = (),
    allow_inconclusive: bool = False,
) -> Comparison:
    """Point by point: `candidate` with `baseline`, or the two `variants` of `baseline` with each other.

    `fail_if` are limits such as "output_throughput < -3%", `allow` the facts that may differ, `metrics` what is shown
    besides the study's primary metric. `allow_inconclusive`: a limit that an interval contains counts as met.
    """
    conditions = [parse_condition(text) for text in fail_if]
    shown = [parse_metric(name) for name in metrics]
    if (candidate is None) is (variants is None):
        raise UsageError("give two study folders, or one and --variants OLD NEW")
    if variants is not None and allow:
        raise UsageError("--allow is for two study folders; between variants of one, what differs is named and allowed")
    before = StudyFolder.existing(baseline).read()
    if variants is not None:
        found = compare_configs(before, _pairs(before.plan, *variants), metrics=shown, conditions=conditions)
    else:
        assert candidate is not None
        after = StudyFolder.existing(candidate).read()
        found = compare_studies(before, after, metrics=shown, conditions=conditions, allowed=allow)
    return found.model_copy(update={"allow_inconclusive": allow_inconclusive})


def _pairs(plan: Plan, old: str, new: str) -> list[tuple[Config, Config]]:
    """By full name; or two variants, or recipes of one model, on each engine that has both; or two engines with each
    variant that has both."""
    variants = {variant.name: variant for variant in plan.variants}

    def recipe(config: Config) -> str:
        return variants[config.variant].recipe

    def model_and_engine(config: Config) -> tuple[str, str]:
        return variants[config.variant].model_name, config.engine

    # What the two are called by, and what they must have in common.
    ways: tuple[tuple[Callable[[Config], str], Callable[[Config], object]], ...] = (
        (lambda config: config.name, lambda _: None),
        (lambda config: config.variant, lambda config: config.engine),
        (recipe, model_and_engine),
        (lambda config: config.engine, lambda config: config.variant),
    )
    for called, common in ways:
        before, after = ([config for config in plan.configs if called(config) == wanted] for wanted in (old, new))
        if pairs := [(first, second) for first in before for second in after if common(first) == common(second)]:
            return pairs
    raise UsageError(
        f"{old} and {new} are not two variants, recipes, engines or configs of this study that can be paired; it "
        f"has {', '.join(config.name for config in plan.configs)}"
    )

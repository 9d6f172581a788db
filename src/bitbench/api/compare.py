"""Compares two study folders, or two variants of one."""

from collections.abc import Callable, Sequence
from pathlib import Path

from bitbench.analysis.changes import gate_condition
from bitbench.analysis.results.comparison import Comparison
from bitbench.analysis.results.facts import Fact
from bitbench.analysis.study_comparison import compare_studies, compare_within_study
from bitbench.records.folder import StudyFolder
from bitbench.study.plan import Config, Plan
from bitbench.util.errors import UsageError


def compare(
    baseline: str | Path,
    candidate: str | Path | None = None,
    *,
    variants: tuple[str, str] | None = None,
    fail_if: Sequence[str] = (),
    allow: Sequence[Fact | str] = (),
    allow_inconclusive: bool = False,
) -> Comparison:
    """Compare two study folders point by point, or two `variants` of one.

    `fail_if` are limits such as "output_throughput < -3%", whose figures are shown besides the primary metric; `allow`
    are facts that may differ; `allow_inconclusive` counts a limit that an interval contains as met.
    """
    conditions = [gate_condition(text) for text in fail_if]
    allowed = [Fact(fact) for fact in allow]
    if candidate is not None and variants is None:
        before, after = (
            StudyFolder.existing(Path(folder)).read() for folder in (baseline, candidate)
        )
        found = compare_studies(before, after, conditions=conditions, allowed=allowed)
    elif candidate is None and variants is not None:
        if allowed:
            raise UsageError(
                "--allow is for two study folders; between variants of one, what differs is named and allowed"
            )
        both = StudyFolder.existing(Path(baseline)).read()
        found = compare_within_study(both, _pairs(both.plan, *variants), conditions=conditions)
    else:
        raise UsageError("give two study folders, or one and --variants OLD NEW")
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
        before, after = (
            [config for config in plan.configs if called(config) == wanted] for wanted in (old, new)
        )
        if pairs := [
            (first, second)
            for first in before
            for second in after
            if common(first) == common(second)
        ]:
            return pairs
    raise UsageError(
        f"{old} and {new} are not two variants, recipes, engines or configs of this study that can be paired; it "
        f"has {', '.join(config.name for config in plan.configs)}"
    )

"""Compares two study folders, or two variants of one."""

from collections.abc import Sequence
from pathlib import Path

from bitbench.core.cell import Contender, Plan
from bitbench.core.found.comparison import Comparison
from bitbench.core.found.facts import Fact
from bitbench.ground.errors import UsageError
from bitbench.statistics.gate import parse_condition, parse_metric
from bitbench.statistics.studies import compare_contenders, compare_studies
from bitbench.store.folder import StudyFolder


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
    """Cell by cell: `candidate` with `baseline`, or the two `variants` of `baseline` with each other.

    `fail_if` are limits such as "output_throughput < -3%", `allow` the facts that may differ, `metrics` what is shown
    besides the study's headline. `allow_inconclusive`: a limit that an interval contains counts as met.
    """
    conditions = [parse_condition(text) for text in fail_if]
    shown = [parse_metric(name) for name in metrics]
    if (candidate is None) is (variants is None):
        raise UsageError("give two study folders, or one and --variants OLD NEW")
    before = StudyFolder.existing(baseline).read()
    if variants is not None:
        found = compare_contenders(before, _pairs(before.plan, *variants), metrics=shown, conditions=conditions)
    else:
        assert candidate is not None
        after = StudyFolder.existing(candidate).read()
        found = compare_studies(before, after, metrics=shown, conditions=conditions, allowed=allow)
    return found.model_copy(update={"allow_inconclusive": allow_inconclusive})


def _pairs(plan: Plan, old: str, new: str) -> list[tuple[Contender, Contender]]:
    """By full name; or two variants on each engine that has both; or two engines with each variant that has both."""
    for key, other in (("name", "name"), ("variant", "engine"), ("engine", "variant")):
        sides = [
            [contender for contender in plan.contenders if getattr(contender, key) == wanted] for wanted in (old, new)
        ]
        if all(sides):
            pairs = [
                (before, after)
                for before in sides[0]
                for after in sides[1]
                if key == "name" or getattr(before, other) == getattr(after, other)
            ]
            if pairs:
                return pairs
    raise UsageError(
        f"{old} and {new} are not two variants, engines or contenders of this study that can be paired; it has "
        f"{', '.join(contender.name for contender in plan.contenders)}"
    )

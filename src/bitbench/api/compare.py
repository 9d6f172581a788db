"""The comparison of two study folders, or of two variants in one."""

from collections.abc import Callable, Sequence

from bitbench.analysis.changes import parse_gate_condition
from bitbench.analysis.results.comparison import Comparison
from bitbench.analysis.results.facts import Fact
from bitbench.analysis.study_comparison import compare_studies, compare_within_study
from bitbench.api.inputs import ResultsInput, open_study_folder
from bitbench.study.plan import Config, Plan
from bitbench.util.errors import UsageError


def compare(
    baseline: ResultsInput,
    candidate: ResultsInput | None = None,
    *,
    variants: tuple[str, str] | None = None,
    fail_if: Sequence[str] = (),
    allow: Sequence[Fact | str] = (),
    allow_inconclusive: bool = False,
) -> Comparison:
    """Compare two study folders point by point, or two variants of one.

    Args:
        baseline: The results to compare with, or the path of their folder.
        candidate: The results to check, or the path of their folder.
        variants: Two variants or configs of `baseline` to compare, instead of a `candidate`.
        fail_if: Limits such as "output_throughput < -3%". Their metrics are shown next to the
            primary metric.
        allow: Facts that may differ between the two.
        allow_inconclusive: Whether a limit that an interval contains is accepted.

    Returns:
        The comparison. Its `gates` judge the limits, and `exit_code` is that of the command.

    Raises:
        BitbenchError: The two cannot be compared, or differ in a fact that is not allowed.

    Example:
        later = bitbench.open("out")
        bitbench.compare("baseline", later, fail_if=["output_throughput < -3%"]).exit_code
    """
    conditions = [parse_gate_condition(text) for text in fail_if]
    allowed = [Fact(fact) for fact in allow]
    if candidate is not None and variants is None:
        before = open_study_folder(baseline).read()
        after = open_study_folder(candidate).read()
        comparison = compare_studies(before, after, conditions=conditions, allowed=allowed)
    elif candidate is None and variants is not None:
        if allowed:
            raise UsageError(
                "--allow is for two study folders; "
                "between variants of one, what differs is named and allowed"
            )
        study = open_study_folder(baseline).read()
        pairs = _list_pairs(study.plan, *variants)
        comparison = compare_within_study(study, pairs, conditions=conditions)
    else:
        raise UsageError("give two study folders, or one and --variants OLD NEW")
    return comparison.model_copy(update={"allow_inconclusive": allow_inconclusive})


def _list_pairs(plan: Plan, old: str, new: str) -> list[tuple[Config, Config]]:
    """Return the pairs of configs that two names mean. Raise UsageError if none exist.

    1. Two full names of configs.
    2. Two variants, on each engine that has both.
    3. Two recipes, for each model and engine that has both.
    4. Two engines, with each variant that has both.
    """
    configs = plan.configs
    variants = {variant.name: variant for variant in plan.variants}

    def recipe(config: Config) -> str:
        return variants[config.variant].recipe

    def model_and_engine(config: Config) -> tuple[str, str]:
        return variants[config.variant].model_name, config.engine

    # The name of a config, and what the two configs of a pair must have in common.
    meanings: tuple[tuple[Callable[[Config], str], Callable[[Config], object]], ...] = (
        (lambda config: config.name, lambda _: None),
        (lambda config: config.variant, lambda config: config.engine),
        (recipe, model_and_engine),
        (lambda config: config.engine, lambda config: config.variant),
    )
    for get_name, get_common in meanings:
        pairs: list[tuple[Config, Config]] = []
        for before in configs:
            for after in configs:
                is_named = get_name(before) == old and get_name(after) == new
                if is_named and get_common(before) == get_common(after):
                    pairs.append((before, after))
        if pairs:
            return pairs
    raise UsageError(
        f"{old} and {new} are not two variants, recipes, engines or configs of this study "
        f"that can be paired; it has {', '.join(config.name for config in configs)}"
    )

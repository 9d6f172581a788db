"""Task results beside the baseline's."""

from collections.abc import Sequence
from math import hypot

from bitbench.analysis.results.summary import TaskEstimate
from bitbench.records.quality import TaskResult


def compare_tasks(results: Sequence[TaskResult], baseline: Sequence[TaskResult]) -> tuple[TaskEstimate, ...]:
    """Both answer the same questions, but lm-eval gives sums: the error of the difference is that of independent
    ones, which is too wide rather than too narrow."""
    others = {(one.task, one.metric): one for one in baseline}
    return tuple(_compare(result, others.get((result.task, result.metric))) for result in results)


def _compare(one: TaskResult, other: TaskResult | None) -> TaskEstimate:
    error = None
    if other and one.standard_error is not None and other.standard_error is not None:
        error = hypot(one.standard_error, other.standard_error)
    return TaskEstimate(
        task=one.task,
        metric=one.metric,
        value=one.value,
        standard_error=one.standard_error,
        samples=one.samples,
        difference=one.value - other.value if other else None,
        difference_error=error,
    )

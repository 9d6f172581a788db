"""Task results compared with the baseline's, question by question if the answers are recorded.

A quantized model that answers as many questions right as before may answer different ones right.
Two models differ by how many answers were **lost** (right before, wrong now) and how many were
**gained**. If only chance decides, each flipped answer is as likely lost as gained, so the exact
test is the test of a fair coin (McNemar 1947). The interval of the difference is by Agresti and Min
(2005) for paired shares. It adds half a question to each of the four cells, which keeps it valid if
few answers flip.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import hypot, sqrt

from bitbench.analysis.claims import adjust_p_values
from bitbench.analysis.intervals import compute_fair_coin_p_value, compute_normal_quantile
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import ConfigQuality, NeedleDepth, TaskEstimate, TaskFlips
from bitbench.records.quality import TaskAnswer, TaskResult
from bitbench.study.quality import BUILT_IN

ADDED = 0.5  # to each of the four cells

Key = tuple[str, str]  # task and metric
Answers = Mapping[str, TaskAnswer]  # by question


def compare_tasks(
    results: Sequence[TaskResult],
    baseline: Sequence[TaskResult],
    answers: Sequence[TaskAnswer] = (),
    baseline_answers: Sequence[TaskAnswer] = (),
    confidence: float = 0.95,
) -> tuple[TaskEstimate, ...]:
    """Return the task results of a config, each compared with the baseline's if it has one.

    lm-eval's results are its own sums. Results of single answers follow. The tasks that come with
    bitbench also have one result together, which has the name of all of them.
    """
    by_task = _group_by_task(answers)
    others = _group_by_task(baseline_answers)
    baseline_results = {(result.task, result.metric): result for result in baseline}
    estimates = []
    summed = set()
    for result in results:
        key = (result.task, result.metric)
        summed.add(key)
        estimates.append(_summarize_result(result, baseline_results.get(key)))
    estimates += [_summarize_answers(key, by_task[key]) for key in by_task if key not in summed]
    compared = []
    for estimate in estimates:
        key = (estimate.task, estimate.metric)
        update: dict[str, object] = {}
        if key in by_task:
            update = _compare_answers(by_task[key], others.get(key, {}), confidence)
        compared.append(estimate.model_copy(update=update))
    return tuple(compared)


def _group_by_task(answers: Iterable[TaskAnswer]) -> dict[Key, dict[str, TaskAnswer]]:
    """Return the answers by task and metric, and then by question."""
    by_task: dict[Key, dict[str, TaskAnswer]] = {}
    for answer in answers:
        if answer.task.startswith(f"{BUILT_IN}/"):
            together = by_task.setdefault((BUILT_IN, answer.metric), {})
            together[f"{answer.task} {answer.question}"] = answer
        by_task.setdefault((answer.task, answer.metric), {})[answer.question] = answer
    return by_task


def _summarize_answers(key: Key, answers: Answers) -> TaskEstimate:
    count = len(answers)
    share = sum(answer.is_right for answer in answers.values()) / count
    return TaskEstimate(
        task=key[0],
        metric=key[1],
        value=share,
        standard_error=sqrt(share * (1 - share) / count),
        samples=count,
    )


def _summarize_result(result: TaskResult, other: TaskResult | None) -> TaskEstimate:
    """Return a result of lm-eval with its difference to the baseline's.

    lm-eval gives sums, so the error of the difference is that of independent results. It is too
    large rather than too small.
    """
    difference = None
    error = None
    if other is not None:
        difference = result.value - other.value
        if result.standard_error is not None and other.standard_error is not None:
            error = hypot(result.standard_error, other.standard_error)
    return TaskEstimate(
        task=result.task,
        metric=result.metric,
        value=result.value,
        standard_error=result.standard_error,
        samples=result.samples,
        difference=difference,
        difference_error=error,
    )


def _compare_answers(answers: Answers, baseline: Answers, confidence: float) -> dict[str, object]:
    """Return the fields of a TaskEstimate that need single answers."""
    cut = [answer.is_cut for answer in answers.values() if answer.is_cut is not None]
    cut_share = sum(cut) / len(cut) if cut else None
    fields: dict[str, object] = {"cut_share": cut_share}
    common = answers.keys() & baseline.keys()
    if common:
        right = {name for name in common if answers[name].is_right}
        right_before = {name for name in common if baseline[name].is_right}
        lost = len(right_before - right)
        flips = summarize_flips(lost, len(right - right_before), len(common), confidence)
        fields |= {"flips": flips, "difference": flips.difference.value, "difference_error": None}
    return fields


def summarize_flips(lost: int, gained: int, questions: int, confidence: float) -> TaskFlips:
    """Return the flips of `asked` questions that both models answered, with the exact test."""
    count = questions + 4 * ADDED
    flipped = lost + gained
    center = (gained - lost) / count
    spread = sqrt(max(flipped + 2 * ADDED - count * center**2, 0.0)) / count
    half = compute_normal_quantile((1 + confidence) / 2) * spread
    difference = Estimate(
        value=(gained - lost) / questions,
        low=max(center - half, -1.0),
        high=min(center + half, 1.0),
        confidence=confidence,
    )
    return TaskFlips(
        lost=lost,
        gained=gained,
        difference=difference,
        p_value=compute_fair_coin_p_value(min(lost, gained), flipped),
    )


def adjust_task_p_values(rows: Sequence[ConfigQuality]) -> tuple[ConfigQuality, ...]:
    """Return the rows with the p-values of each task adjusted for all variants it compares."""
    tasks = [list(row.tasks) for row in rows]
    by_key: dict[Key, list[tuple[int, int, TaskFlips]]] = {}
    for row, row_tasks in enumerate(tasks):
        for index, task in enumerate(row_tasks):
            if task.flips is not None:
                key = (task.task, task.metric)
                by_key.setdefault(key, []).append((row, index, task.flips))
    for entries in by_key.values():
        adjusted = adjust_p_values([flips.p_value for _, _, flips in entries])
        for (row, index, flips), p_value in zip(entries, adjusted, strict=True):
            update = {"flips": flips.model_copy(update={"p_value": p_value})}
            tasks[row][index] = tasks[row][index].model_copy(update=update)
    return tuple(
        row.model_copy(update={"tasks": tuple(row_tasks)})
        for row, row_tasks in zip(rows, tasks, strict=True)
    )


def iter_needles(answers: Iterable[TaskAnswer]) -> Iterator[NeedleDepth]:
    """Yield how many needles were found at each window length and depth, in this order."""
    by_position: dict[tuple[int, int], list[bool]] = {}
    for answer in answers:
        if answer.length is not None and answer.depth is not None:
            by_position.setdefault((answer.length, answer.depth), []).append(answer.is_right)
    for (length, depth), right in sorted(by_position.items()):
        yield NeedleDepth(length=length, depth=depth, found=sum(right), asked=len(right))

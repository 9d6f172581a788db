"""Task results beside the baseline's: question by question where the answers are known.

A quantized model that answers as many questions right as before may answer others. What tells two models apart is how
many answers were **lost** (right before, wrong now) beside how many were **gained**: if nothing but chance decides,
each of those that flipped is as likely lost as gained, so the exact test is that of a fair coin (McNemar 1947). The
interval of the difference is that of Agresti and Min (2005) for paired shares: half a question is added to each of the
four cells, which keeps it honest where few answers flip.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import hypot, sqrt

from bitbench.analysis.claims import holm
from bitbench.analysis.intervals import fair_coin_p_value, normal_quantile
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
    """Those of lm-eval as it sums them up, those of single answers beside them; all that come with bitbench together
    are one more, named after all of them."""
    own, others = _by_task(answers), _by_task(baseline_answers)
    sums = {(result.task, result.metric): result for result in baseline}
    found = [_of_result(result, sums.get((result.task, result.metric))) for result in results]
    summed = {(result.task, result.metric) for result in results}
    found += [_of_answers(key, own[key]) for key in own if key not in summed]
    return tuple(
        estimate.model_copy(update=_paired(own[key], others.get(key, {}), confidence))
        if key in own
        else estimate
        for estimate in found
        for key in [(estimate.task, estimate.metric)]
    )


def _by_task(answers: Iterable[TaskAnswer]) -> dict[Key, dict[str, TaskAnswer]]:
    found: dict[Key, dict[str, TaskAnswer]] = {}
    for answer in answers:
        if answer.task.startswith(f"{BUILT_IN}/"):
            found.setdefault((BUILT_IN, answer.metric), {})[f"{answer.task} {answer.question}"] = (
                answer
            )
        found.setdefault((answer.task, answer.metric), {})[answer.question] = answer
    return found


def _of_answers(key: Key, answers: Answers) -> TaskEstimate:
    count = len(answers)
    share = sum(answer.is_right for answer in answers.values()) / count
    return TaskEstimate(
        task=key[0],
        metric=key[1],
        value=share,
        standard_error=sqrt(share * (1 - share) / count),
        samples=count,
    )


def _of_result(result: TaskResult, other: TaskResult | None) -> TaskEstimate:
    """lm-eval gives sums: the error of a difference is that of independent ones, which is too wide rather than too
    narrow."""
    error = None
    if other and result.standard_error is not None and other.standard_error is not None:
        error = hypot(result.standard_error, other.standard_error)
    return TaskEstimate(
        task=result.task,
        metric=result.metric,
        value=result.value,
        standard_error=result.standard_error,
        samples=result.samples,
        difference=result.value - other.value if other else None,
        difference_error=error,
    )


def _paired(answers: Answers, baseline: Answers, confidence: float) -> dict[str, object]:
    known = [answer.is_cut for answer in answers.values() if answer.is_cut is not None]
    found: dict[str, object] = {"cut_share": sum(known) / len(known) if known else None}
    pairs = [
        (answer.is_right, baseline[name].is_right)
        for name, answer in answers.items()
        if name in baseline
    ]
    if pairs:
        lost = sum(before and not now for now, before in pairs)
        gained = sum(now and not before for now, before in pairs)
        flips = task_flips(lost, gained, len(pairs), confidence)
        found |= {"flips": flips, "difference": flips.difference.value, "difference_error": None}
    return found


def task_flips(lost: int, gained: int, asked: int, confidence: float) -> TaskFlips:
    """Of `asked` questions that both answered."""
    count, flipped = asked + 4 * ADDED, lost + gained
    centre = (gained - lost) / count
    spread = sqrt(max(flipped + 2 * ADDED - count * centre**2, 0.0)) / count
    half = normal_quantile((1 + confidence) / 2) * spread
    difference = Estimate(
        value=(gained - lost) / asked,
        low=max(centre - half, -1.0),
        high=min(centre + half, 1.0),
        confidence=confidence,
    )
    return TaskFlips(
        lost=lost,
        gained=gained,
        difference=difference,
        p_value=fair_coin_p_value(min(lost, gained), flipped),
    )


def adjust_task_p_values(rows: Sequence[ConfigQuality]) -> tuple[ConfigQuality, ...]:
    """The p-values of each task, for all variants that it compares."""
    places = [(row, place) for row in range(len(rows)) for place in range(len(rows[row].tasks))]
    by_key: dict[Key, list[tuple[int, int]]] = {}
    for row, place in places:
        task = rows[row].tasks[place]
        if task.flips is not None:
            by_key.setdefault((task.task, task.metric), []).append((row, place))
    tasks = [list(row.tasks) for row in rows]
    for alike in by_key.values():
        flips = [flips for row, place in alike if (flips := tasks[row][place].flips) is not None]
        for (row, place), known, value in zip(
            alike, flips, holm([flip.p_value for flip in flips]), strict=True
        ):
            update = {"flips": known.model_copy(update={"p_value": value})}
            tasks[row][place] = tasks[row][place].model_copy(update=update)
    return tuple(
        row.model_copy(update={"tasks": tuple(own)}) for row, own in zip(rows, tasks, strict=True)
    )


def needles_of(answers: Iterable[TaskAnswer]) -> Iterator[NeedleDepth]:
    found: dict[tuple[int, int], list[bool]] = {}
    for answer in answers:
        if answer.length is not None and answer.depth is not None:
            found.setdefault((answer.length, answer.depth), []).append(answer.is_right)
    for (length, depth), right in sorted(found.items()):
        yield NeedleDepth(length=length, depth=depth, found=sum(right), asked=len(right))

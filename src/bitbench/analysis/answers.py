"""Greedy answers beside the baseline's: equal or not, from which token on, and whether one runs in a loop."""

from collections.abc import Sequence

from bitbench.analysis.results.summary import AnswerComparison
from bitbench.records.quality import Answer

# The end of an answer is one piece over and over: at least so many times, and at least so many tokens in all. A list
# with the same beginning of each line, or "ha ha ha", stays below.
LEAST_REPEATS = 4
LEAST_REPEATED_TOKENS = 16


def compare_answers(answers: Sequence[Answer], baseline: Sequence[Answer]) -> tuple[AnswerComparison, ...]:
    others = {answer.prompt: answer for answer in baseline}
    return tuple(_compare(answer, others.get(answer.prompt)) for answer in answers)


def _compare(answer: Answer, other: Answer | None) -> AnswerComparison:
    return AnswerComparison(
        prompt=answer.prompt,
        text=answer.text,
        baseline_text=other.text if other else None,
        first_difference=first_difference(answer.tokens, other.tokens) if other else None,
        repeats=runs_in_a_loop(answer.tokens),
        is_question=answer.window is None,
    )


def first_difference(tokens: Sequence[int], other: Sequence[int]) -> int | None:
    """Counted from 0; one that ends earlier differs at its end. None where they are equal."""
    for place, (one, two) in enumerate(zip(tokens, other, strict=False)):
        if one != two:
            return place
    return None if len(tokens) == len(other) else min(len(tokens), len(other))


def runs_in_a_loop(tokens: Sequence[int]) -> bool:
    for length in range(1, len(tokens) // LEAST_REPEATS + 1):
        period = list(tokens[len(tokens) - length :])
        times = max(LEAST_REPEATS, -(-LEAST_REPEATED_TOKENS // length))
        if times * length <= len(tokens) and list(tokens[len(tokens) - times * length :]) == period * times:
            return True
    return False

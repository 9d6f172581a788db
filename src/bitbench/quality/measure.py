"""All requests to one instance that measure the quality of its model, one at a time.

Requests are sent one at a time, because batching changes how an engine rounds. This way the same
weights on the same engine give the same numbers to the last bit, and a variant has no divergence
from itself.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from bitbench.ports import Endpoint
from bitbench.quality.conversations import find_fault, load_conversation_tasks
from bitbench.quality.logprobs import InputLogprobs, InstanceConnection, NextToken, PromptLogprobs
from bitbench.quality.needles import NEEDLE_ANSWER_TOKENS
from bitbench.quality.tasks import NO_TASKS, TaskTools, run_tasks
from bitbench.records.quality import (
    SCORE_COLUMNS,
    Answer,
    ConversationRecord,
    Prompt,
    QualityMaterial,
    Script,
    TaskAnswer,
    TaskQuestion,
    TurnAnswer,
)
from bitbench.study.base import Json
from bitbench.study.quality import TURN_TOKENS, Quality, Scoring
from bitbench.util.text import format_printable

if TYPE_CHECKING:
    import pyarrow as pa


OnStep = Callable[[str], None]
Item = TypeVar("Item")


class Asker(Protocol):
    """A way to ask for scores and answers. Its methods raise AskingFailed."""

    def score(self, window: Sequence[int], top: int) -> list[dict[int, float]]:
        """Return the log-probabilities at each token but the first, by token.

        They include the likeliest tokens and the token of the window.
        """

    def answer(
        self, prompt: Sequence[int], length: int, end_tokens: Sequence[int], stop: str | None = None
    ) -> tuple[list[int], str]:
        """Return the tokens and the text of a greedy answer of at most `length` tokens.

        The tokens end before the first end token. The text ends before `stop`.
        """


def make_asker(scoring: Scoring, connection: InstanceConnection) -> Asker:
    """Return the asker for a way of scoring."""
    askers: dict[Scoring, Callable[[InstanceConnection], Asker]] = {
        Scoring.PROMPT_LOGPROBS: PromptLogprobs,
        Scoring.INPUT_LOGPROBS: InputLogprobs,
        Scoring.NEXT_TOKEN: NextToken,
    }
    return askers[scoring](connection)


def _iter_steps(items: Collection[Item], what: str, on_step: OnStep) -> Iterator[Item]:
    """Yield each item after its step has been reported, such as `window 3 of 32`."""
    for number, item in enumerate(items, start=1):
        on_step(f"{what} {number} of {len(items)}")
        yield item


def score_windows(
    asker: Asker,
    windows: Sequence[Sequence[int]],
    top: int,
    on_step: OnStep,
    numbers: Sequence[int] | None = None,
) -> "pa.Table":
    """Score windows, or only those with these numbers.

    The table has the columns of SCORE_COLUMNS, and a row per token but the first of each window.
    """
    if numbers is None:
        numbers = range(len(windows))
    chosen = {number: windows[number] for number in numbers}
    scored = (
        asker.score(window, top) for window in _iter_steps(chosen.values(), "window", on_step)
    )
    return _score_table(chosen, scored, top)


def _score_table(
    windows: Mapping[int, Sequence[int]], scored: Iterable[list[dict[int, float]]], top: int
) -> "pa.Table":
    import pyarrow as pa

    from bitbench.records.strict_reader import make_arrow_schema

    rows: list[tuple[Json, ...]] = []
    for (number, window), scores in zip(windows.items(), scored, strict=True):
        for position, logprobs in enumerate(scores, start=1):
            token = window[position]
            top_tokens = sorted(logprobs, key=lambda candidate: -logprobs[candidate])[:top]
            top_logprobs = [logprobs[top_token] for top_token in top_tokens]
            rows.append((number, position, token, logprobs[token], top_tokens, top_logprobs))
    schema = make_arrow_schema(SCORE_COLUMNS)
    arrays = []
    for index, field in enumerate(schema):
        arrays.append(pa.array([row[index] for row in rows], field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def ask_answers(
    asker: Asker, prompts: Sequence[Prompt], length: int, end_tokens: Sequence[int], on_step: OnStep
) -> tuple[Answer, ...]:
    """Return greedy answers to fixed prompts."""
    answers = []
    for prompt in _iter_steps(prompts, "answer", on_step):
        tokens, text = asker.answer(prompt.tokens, length, end_tokens)
        answers.append(Answer(prompt=prompt.text, text=text, tokens=tuple(tokens)))
    return tuple(answers)


def ask_tasks(
    asker: Asker, questions: Sequence[TaskQuestion], end_tokens: Sequence[int], on_step: OnStep
) -> tuple[TaskAnswer, ...]:
    """Return one-line answers to the questions of tasks."""
    answers = []
    for question in _iter_steps(questions, "question", on_step):
        tokens, text = asker.answer(question.tokens, NEEDLE_ANSWER_TOKENS, end_tokens, stop="\n")
        answers.append(
            TaskAnswer(
                task=question.task,
                question=question.name,
                is_right=question.right in text,
                is_cut=len(tokens) >= NEEDLE_ANSWER_TOKENS,
                text=format_printable(text),
                length=question.length,
                depth=question.depth,
            )
        )
    return tuple(answers)


def ask_conversations(
    asker: Asker, scripts: Sequence[Script], end_tokens: Sequence[int], on_step: OnStep
) -> tuple[ConversationRecord, ...]:
    """Return the conversations, each until its first answer with a fault."""
    conversations = []
    for script in _iter_steps(scripts, "conversation", on_step):
        task = load_conversation_tasks()[script.task]
        answers: list[TurnAnswer] = []
        for prompt in script.prompts:
            _, text = asker.answer(prompt, TURN_TOKENS, end_tokens, stop="\n")
            fault = find_fault(text, task)
            answers.append(TurnAnswer(text=format_printable(text), fault=fault))
            if fault is not None:
                break
        record = ConversationRecord(
            name=script.name, task=script.task, turns=len(script.turns), answers=tuple(answers)
        )
        conversations.append(record)
    return tuple(conversations)


AGAIN = 8  # windows that a second start scores. A few are enough: a start affects all of them


@dataclass(frozen=True)
class QualityJob:
    """The inputs for measuring the quality of one instance."""

    endpoint: Endpoint
    scoring: Scoring
    quality: Quality
    material: QualityMaterial
    tools: TaskTools | None  # None without tasks of lm-eval
    request_timeout_s: float


def _select_windows_again(windows: int) -> list[int]:
    """Return the numbers of the windows that a second start scores."""
    count = min(AGAIN, windows)
    return [number * windows // count for number in range(count)]


def measure_quality_again(job: QualityJob) -> "pa.Table":
    """Score a few evenly spaced windows in a second start of a config, and return their scores.

    They show how much a start affects the scores. Raise AskingFailed if a request fails.
    """
    windows = job.material.short_windows
    numbers = _select_windows_again(len(windows))
    with InstanceConnection(job.endpoint, job.request_timeout_s) as connection:
        asker = make_asker(job.scoring, connection)
        return score_windows(asker, windows, job.quality.top_tokens, lambda _: None, numbers)


def measure_quality(job: QualityJob, on_step: OnStep) -> "tuple[pa.Table, dict[str, Json]]":
    """Return the scores, and the other fields of a quality record, failed tasks included.

    Block until all requests are answered. Raise AskingFailed if a request outside tasks fails.
    """
    material = job.material
    quality = job.quality
    with InstanceConnection(job.endpoint, job.request_timeout_s) as connection:
        asker = make_asker(job.scoring, connection)
        scores = score_windows(asker, material.windows, quality.top_tokens, on_step)
        answers = ask_answers(
            asker, material.prompts, quality.answer_tokens, material.end_tokens, on_step
        )
        conversations = ask_conversations(asker, material.scripts, material.end_tokens, on_step)
        answered = ask_tasks(asker, material.questions, material.end_tokens, on_step)
    tasks = NO_TASKS
    if job.tools:
        tasks = run_tasks(job.endpoint, job.scoring, quality, job.tools, on_step)
    return scores, {
        "answers": answers,
        "conversations": conversations,
        "tasks": tasks.results,
        "task_answers": (*answered, *tasks.answers),
        "task_failures": tasks.failures,
        "versions": dict(tasks.versions),
    }

"""All that is asked of one instance about the quality of what it runs, one request at a time.

One at a time, because how requests are batched changes how an engine rounds: asked in this way, the same weights on
the same engine give the same numbers to the last bit, and a variant has no divergence from itself.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from bitbench.ports import Endpoint
from bitbench.quality.conversations import conversation_fault, conversation_tasks
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
from bitbench.util.text import printable

if TYPE_CHECKING:
    import pyarrow as pa


OnStep = Callable[[str], None]
Item = TypeVar("Item")


class Asker(Protocol):
    """One way to ask; raises AskingFailed."""

    def score(self, window: Sequence[int], top: int) -> list[dict[int, float]]:
        """For each token but the first: the likeliest tokens there and the one that stands there, with
        log-probabilities."""

    def answer(
        self, prompt: Sequence[int], length: int, end_tokens: Sequence[int], stop: str | None = None
    ) -> tuple[list[int], str]:
        """A greedy answer of at most so many tokens, cut before the first that ends a text; and as text, which ends
        before `stop`."""


def instance_asker(scoring: Scoring, connection: InstanceConnection) -> Asker:
    askers: dict[Scoring, Callable[[InstanceConnection], Asker]] = {
        Scoring.PROMPT_LOGPROBS: PromptLogprobs,
        Scoring.INPUT_LOGPROBS: InputLogprobs,
        Scoring.NEXT_TOKEN: NextToken,
    }
    return askers[scoring](connection)


def _told(items: Collection[Item], what: str, on_step: OnStep) -> Iterator[Item]:
    """Each, when it is its turn and that has been told: `window 3 of 32`."""
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
    """One row per token but the first of each window, in the columns of SCORE_COLUMNS. `numbers`: only these."""
    asked = (
        dict(enumerate(windows))
        if numbers is None
        else {number: windows[number] for number in numbers}
    )
    scored = (asker.score(window, top) for window in _told(asked.values(), "window", on_step))
    return _score_table(asked, scored, top)


def _score_table(
    windows: Mapping[int, Sequence[int]], scored: Iterable[list[dict[int, float]]], top: int
) -> "pa.Table":
    import pyarrow as pa

    from bitbench.records.strict_reader import strict_reader_schema

    columns: list[list[Json]] = [[] for _ in SCORE_COLUMNS]
    for (number, window), places in zip(windows.items(), scored, strict=True):
        for position, place in enumerate(places, start=1):
            ranked = sorted(place.items(), key=lambda pair: -pair[1])[:top]
            token = window[position]
            row = (
                number,
                position,
                token,
                place[token],
                [candidate for candidate, _ in ranked],
                [value for _, value in ranked],
            )
            for column, value in zip(columns, row, strict=True):
                column.append(value)
    schema = strict_reader_schema(SCORE_COLUMNS)
    return pa.Table.from_arrays(
        [pa.array(values, kind.type) for values, kind in zip(columns, schema, strict=True)],
        schema=schema,
    )


def ask_answers(
    asker: Asker, prompts: Sequence[Prompt], length: int, end_tokens: Sequence[int], on_step: OnStep
) -> tuple[Answer, ...]:
    answers = []
    for prompt in _told(prompts, "answer", on_step):
        tokens, text = asker.answer(prompt.tokens, length, end_tokens)
        answers.append(Answer(prompt=prompt.text, text=text, tokens=tuple(tokens)))
    return tuple(answers)


def ask_tasks(
    asker: Asker, questions: Sequence[TaskQuestion], end_tokens: Sequence[int], on_step: OnStep
) -> tuple[TaskAnswer, ...]:
    """Answers of one line."""
    found = []
    for question in _told(questions, "question", on_step):
        tokens, text = asker.answer(question.tokens, NEEDLE_ANSWER_TOKENS, end_tokens, stop="\n")
        found.append(
            TaskAnswer(
                task=question.task,
                question=question.name,
                is_right=question.right in text,
                is_cut=len(tokens) >= NEEDLE_ANSWER_TOKENS,
                text=printable(text),
                length=question.length,
                depth=question.depth,
            )
        )
    return tuple(found)


def ask_conversations(
    asker: Asker, scripts: Sequence[Script], end_tokens: Sequence[int], on_step: OnStep
) -> tuple[ConversationRecord, ...]:
    """Each until its first answer with a fault."""
    found = []
    for script in _told(scripts, "conversation", on_step):
        answers: list[TurnAnswer] = []
        for prompt in script.prompts:
            _, text = asker.answer(prompt, TURN_TOKENS, end_tokens, stop="\n")
            answers.append(
                TurnAnswer(
                    text=printable(text),
                    fault=conversation_fault(text, conversation_tasks()[script.task]),
                )
            )
            if answers[-1].fault is not None:
                break
        turns = len(script.turns)
        found.append(
            ConversationRecord(
                name=script.name, task=script.task, turns=turns, answers=tuple(answers)
            )
        )
    return tuple(found)


AGAIN = 8  # windows that a second start scores: what a start changes, it changes in all of them


@dataclass(frozen=True)
class QualityJob:
    endpoint: Endpoint
    scoring: Scoring
    quality: Quality
    material: QualityMaterial
    tools: TaskTools | None  # None where no task is asked for
    request_timeout_s: float


def _windows_again(windows: int) -> list[int]:
    """The numbers of those that a second start scores."""
    count = min(AGAIN, windows)
    return [number * windows // count for number in range(count)]


def measure_quality_again(job: QualityJob) -> "pa.Table":
    """The scores of some windows, at even distances, with their numbers; raises AskingFailed."""
    windows = job.material.short_windows
    numbers = _windows_again(len(windows))
    with InstanceConnection(job.endpoint, job.request_timeout_s) as connection:
        asker = instance_asker(job.scoring, connection)
        return score_windows(asker, windows, job.quality.top_tokens, lambda _: None, numbers)


def measure_quality(job: QualityJob, on_step: OnStep) -> "tuple[pa.Table, dict[str, Json]]":
    """Scores, and the fields of a record. Blocks until all is asked; raises AskingFailed. A task that fails is in the
    record."""
    material, quality = job.material, job.quality
    with InstanceConnection(job.endpoint, job.request_timeout_s) as connection:
        asker = instance_asker(job.scoring, connection)
        scores = score_windows(asker, material.windows, quality.top_tokens, on_step)
        answers = ask_answers(
            asker, material.prompts, quality.answer_tokens, material.end_tokens, on_step
        )
        conversations = ask_conversations(asker, material.scripts, material.end_tokens, on_step)
        answered = ask_tasks(asker, material.questions, material.end_tokens, on_step)
    tasks = (
        run_tasks(job.endpoint, job.scoring, quality, job.tools, on_step) if job.tools else NO_TASKS
    )
    return scores, {
        "answers": answers,
        "conversations": conversations,
        "tasks": tasks.results,
        "task_answers": (*answered, *tasks.answers),
        "task_failures": tasks.failures,
        "versions": dict(tasks.versions),
    }

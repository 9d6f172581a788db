"""Asks an instance for log-probabilities and for greedy answers, one request at a time.

One at a time, because how requests are batched changes how an engine rounds: asked in this way, the same weights on the
same engine give the same numbers to the last bit, and a variant has no divergence from itself.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

from bitbench.quality.built_in_tasks import is_right
from bitbench.quality.conversations import tasks
from bitbench.quality.input_logprobs import InputLogprobs
from bitbench.quality.next_token import NextToken
from bitbench.quality.prompt_logprobs import PromptLogprobs
from bitbench.quality.validity import fault_of
from bitbench.quality.wire import InstanceConnection
from bitbench.records.quality import (
    SCORE_COLUMNS,
    Answer,
    ConversationRecord,
    Prompt,
    Script,
    TaskAnswer,
    TaskQuestion,
    TurnAnswer,
)
from bitbench.study.base import Json
from bitbench.study.quality import TURN_TOKENS, Scoring
from bitbench.util.quotation import printable

if TYPE_CHECKING:
    import pyarrow as pa

OnStep = Callable[[int], None]


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


def asker_of(scoring: Scoring, connection: InstanceConnection) -> Asker:
    askers: dict[Scoring, Callable[[InstanceConnection], Asker]] = {
        Scoring.PROMPT_LOGPROBS: PromptLogprobs,
        Scoring.INPUT_LOGPROBS: InputLogprobs,
        Scoring.NEXT_TOKEN: NextToken,
    }
    return askers[scoring](connection)


def score_windows(
    asker: Asker, windows: Sequence[Sequence[int]], top: int, on_window: OnStep, numbers: Sequence[int] | None = None
) -> "pa.Table":
    """One row per token but the first of each window, in the columns of SCORE_COLUMNS. `numbers`: only these."""
    asked = dict(enumerate(windows)) if numbers is None else {number: windows[number] for number in numbers}

    def places(number: int) -> list[dict[int, float]]:
        on_window(number)
        return asker.score(windows[number], top)

    return _score_table(asked, map(places, asked), top)


def score_together(askers: Sequence[Asker], windows: Sequence[Sequence[int]], top: int) -> "pa.Table":
    """The same rows, with as many windows asked for at a time as there are askers."""
    free: SimpleQueue[Asker] = SimpleQueue()
    for asker in askers:
        free.put(asker)

    def places(window: Sequence[int]) -> list[dict[int, float]]:
        asker = free.get()
        try:
            return asker.score(window, top)
        finally:
            free.put(asker)

    with ThreadPoolExecutor(len(askers)) as pool:
        return _score_table(dict(enumerate(windows)), pool.map(places, windows), top)


def _score_table(
    windows: Mapping[int, Sequence[int]], scored: Iterable[list[dict[int, float]]], top: int
) -> "pa.Table":
    import pyarrow as pa

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
    types = {"int32": pa.int32(), "float32": pa.float32()}
    types |= {f"list<{name}>": pa.list_(kind) for name, kind in types.items()}
    schema = pa.schema([(column.name, types[column.arrow_type]) for column in SCORE_COLUMNS])
    return pa.Table.from_arrays(
        [pa.array(values, kind.type) for values, kind in zip(columns, schema, strict=True)], schema=schema
    )


def ask_answers(
    asker: Asker, prompts: Sequence[Prompt], length: int, end_tokens: Sequence[int], on_prompt: OnStep
) -> tuple[Answer, ...]:
    answers = []
    for number, prompt in enumerate(prompts):
        on_prompt(number)
        tokens, text = asker.answer(prompt.tokens, length, end_tokens)
        answers.append(Answer(prompt=prompt.text, text=text, tokens=tuple(tokens), window=prompt.window))
    return tuple(answers)


def ask_tasks(
    asker: Asker, questions: Sequence[TaskQuestion], end_tokens: Sequence[int], on_question: OnStep
) -> tuple[TaskAnswer, ...]:
    """Answers of one line."""
    found = []
    for number, question in enumerate(questions):
        on_question(number)
        tokens, text = asker.answer(question.tokens, question.answer_tokens, end_tokens, stop="\n")
        found.append(
            TaskAnswer(
                task=question.task,
                question=question.name,
                is_right=is_right(question, text),
                is_cut=len(tokens) >= question.answer_tokens,
                text=printable(text),
                length=question.length,
                depth=question.depth,
            )
        )
    return tuple(found)


def converse(
    asker: Asker, scripts: Sequence[Script], end_tokens: Sequence[int], on_conversation: OnStep
) -> tuple[ConversationRecord, ...]:
    """Each until its first answer with a fault."""
    found = []
    for number, script in enumerate(scripts):
        on_conversation(number)
        answers: list[TurnAnswer] = []
        for prompt in script.prompts:
            _, text = asker.answer(prompt, TURN_TOKENS, end_tokens, stop="\n")
            answers.append(TurnAnswer(text=printable(text), fault=fault_of(text, tasks()[script.task])))
            if answers[-1].fault is not None:
                break
        turns = len(script.turns)
        found.append(ConversationRecord(name=script.name, task=script.task, turns=turns, answers=tuple(answers)))
    return tuple(found)

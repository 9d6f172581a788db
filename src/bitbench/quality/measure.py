"""All that is asked of one instance about the quality of what it runs."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitbench.ports import Endpoint
from bitbench.quality.asking import ask_answers, ask_tasks, asker_of, converse, score_together, score_windows
from bitbench.quality.tasks import NO_TASKS, TaskOutcome, TaskTools, run_tasks
from bitbench.quality.wire import InstanceConnection
from bitbench.records.quality import Answer, ConversationRecord, QualityMaterial, TaskAnswer
from bitbench.study.quality import Quality, Scoring

if TYPE_CHECKING:
    import pyarrow as pa


TOGETHER = 8  # windows at a time for the noise floor: engines batch them, and small machines bear it
AGAIN = 8  # windows that a second start scores: what a start changes, it changes in all of them


@dataclass(frozen=True)
class QualityJob:
    endpoint: Endpoint
    scoring: Scoring
    quality: Quality
    material: QualityMaterial
    tools: TaskTools | None  # None where no task is asked for
    request_timeout_s: float


@dataclass(frozen=True)
class QualityResult:
    scores: "pa.Table"
    answers: tuple[Answer, ...]
    conversations: tuple[ConversationRecord, ...]
    tasks: TaskOutcome
    task_answers: tuple[TaskAnswer, ...]


def can_be_asked_together(scoring: Scoring) -> bool:
    """llama.cpp is asked in one slot, whose cache makes it affordable."""
    return scoring is Scoring.PROMPT_LOGPROBS


def measure_together(job: QualityJob) -> "pa.Table":
    """The windows' scores while several are asked for at once; raises AskingFailed."""
    with ExitStack() as stack:
        connections = [
            stack.enter_context(InstanceConnection(job.endpoint, job.request_timeout_s)) for _ in range(TOGETHER)
        ]
        askers = [asker_of(job.scoring, connection) for connection in connections]
        return score_together(askers, job.material.short_windows, job.quality.top_tokens)


def measure_again(job: QualityJob) -> "pa.Table":
    """The scores of some windows, at even distances, with their numbers; raises AskingFailed."""
    windows = job.material.short_windows
    count = min(AGAIN, len(windows))
    numbers = [number * len(windows) // count for number in range(count)]
    with InstanceConnection(job.endpoint, job.request_timeout_s) as connection:
        asker = asker_of(job.scoring, connection)
        return score_windows(asker, windows, job.quality.top_tokens, lambda _: None, numbers)


def measure_quality(job: QualityJob, on_step: Callable[[str], None]) -> QualityResult:
    """Blocks until all is asked; raises AskingFailed. A task that fails is in the result."""
    windows, prompts, scripts = job.material.windows, job.material.prompts, job.material.scripts
    questions = job.material.questions
    with InstanceConnection(job.endpoint, job.request_timeout_s) as connection:
        asker = asker_of(job.scoring, connection)
        scores = score_windows(
            asker,
            windows,
            job.quality.top_tokens,
            lambda number: on_step(f"window {number + 1} of {len(windows)}"),
        )
        answers = ask_answers(
            asker,
            prompts,
            job.quality.answer_tokens,
            job.material.end_tokens,
            lambda number: on_step(f"answer {number + 1} of {len(prompts)}"),
        )
        conversations = converse(
            asker,
            scripts,
            job.material.end_tokens,
            lambda number: on_step(f"conversation {number + 1} of {len(scripts)}"),
        )
        answered = ask_tasks(
            asker,
            questions,
            job.material.end_tokens,
            lambda number: on_step(f"question {number + 1} of {len(questions)}"),
        )
    tasks = run_tasks(job.endpoint, job.scoring, job.quality, job.tools, on_step) if job.tools else NO_TASKS
    return QualityResult(scores, answers, conversations, tasks, (*answered, *tasks.answers))

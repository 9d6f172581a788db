"""Tasks of lm-eval, run in a separate environment against the endpoint of an instance.

lm-eval only talks to an endpoint, so it needs no torch and is the same on every machine.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from bitbench.ports import Endpoint
from bitbench.records.quality import TaskAnswer, TaskFailure, TaskResult
from bitbench.study.base import Json
from bitbench.study.environment import Environment
from bitbench.study.quality import LmEvalTask, Quality, Scoring, is_study_task_file
from bitbench.util.child_processes import collect_tool_variables
from bitbench.util.isolated.job_process import WorkerFailed, run_short_job
from bitbench.util.text import format_printable, quote

_PINNED = Path(__file__).with_name("pinned")

LMEVAL = Environment(
    name="lmeval",
    locks={"cpu": _PINNED / "lmeval-cpu.txt"},
    source_lock=_PINNED / "lmeval-source.txt",
    import_check="import lm_eval.models.openai_completions, transformers",
    main_packages=("lm-eval", "transformers"),
)


ENVIRONMENT = LMEVAL.name
KEPT = 1000  # characters of an answer in the records
_WORKER = Path(__file__).parent / "workers" / "lm_eval_worker.py"


@dataclass(frozen=True)
class TaskTools:
    """The paths and the context length that tasks need."""

    python: Path  # of the environment
    folder: Path  # of the study file, to which names of task files are relative
    tokenizer: Path  # folder of the unquantized model
    context_tokens: int


@dataclass(frozen=True)
class TaskOutcome:
    """The outcome of all tasks."""

    results: tuple[TaskResult, ...] = ()
    answers: tuple[TaskAnswer, ...] = ()
    failures: tuple[TaskFailure, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()


NO_TASKS = TaskOutcome()


class _WorkerOutput(BaseModel):
    """The output of the worker for one task."""

    results: list[TaskResult] = []
    answers: list[TaskAnswer] = []
    failure: str | None = None
    versions: dict[str, str] = {}


def list_task_files(quality: Quality) -> tuple[str, ...]:
    """Return the tasks that are files, by their names in the study."""
    return tuple(task.name for task in quality.lm_eval_tasks if is_study_task_file(task.name))


def run_tasks(
    endpoint: Endpoint,
    scoring: Scoring,
    quality: Quality,
    tools: TaskTools,
    on_step: Callable[[str], None],
) -> TaskOutcome:
    """Run each task in a separate process, so that a failed task does not affect the others."""
    results: list[TaskResult] = []
    answers: list[TaskAnswer] = []
    failures: list[TaskFailure] = []
    versions: dict[str, str] = {}
    for number, task in enumerate(quality.lm_eval_tasks):
        on_step(f"task {task.name} ({number + 1} of {len(quality.lm_eval_tasks)})")
        output = _run_task(task, endpoint, scoring, quality, tools)
        results += output.results
        for answer in output.answers:
            text = format_printable(answer.text, KEPT)
            answers.append(answer.model_copy(update={"text": text}))
        versions |= output.versions
        if output.failure is not None:
            failures.append(TaskFailure(task=task.name, cause=output.failure))
    return TaskOutcome(
        tuple(results), tuple(answers), tuple(failures), tuple(sorted(versions.items()))
    )


def _run_task(
    task: LmEvalTask, endpoint: Endpoint, scoring: Scoring, quality: Quality, tools: TaskTools
) -> _WorkerOutput:
    is_file = is_study_task_file(task.name)
    name = task.name
    if is_file:
        name = str((tools.folder / task.name).resolve())
    path = "chat/completions" if task.chat else "completions"
    job = {
        "is_file": is_file,
        "task": name,
        "url": f"{endpoint.url}/v1/{path}",
        "chat": task.chat,
        "strips_thinking": task.think == "strip",
        "concurrency": task.concurrency,
        "model": endpoint.model,
        "tokenizer": str(tools.tokenizer),
        "max_length": tools.context_tokens,
        "limit": quality.task_samples,
        "tells_prompts": scoring is not Scoring.NEXT_TOKEN and not task.chat,
    }
    output: Json = {}
    try:
        for event in run_short_job(
            _WORKER, tools.python, job, env=_collect_variables(endpoint.api_key)
        ):
            output |= event
    except WorkerFailed as failure:
        output["failure"] = quote(str(failure), endpoint.api_key)
    return _WorkerOutput.model_validate(output)


def _collect_variables(key: str) -> dict[str, str]:
    """Return the variables of the worker. `key` is the key of the endpoint.

    Datasets come from a hub, some of them only with a token.
    """
    fixed = {
        "OPENAI_API_KEY": key or "none",
        "TOKENIZERS_PARALLELISM": "false",
        "NO_PROXY": "127.0.0.1",
    }
    return collect_tool_variables(fixed, hub_token=True)

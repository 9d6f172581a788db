"""Tasks of lm-eval, in an environment of its own, against the endpoint of an instance that runs."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from bitbench.ports import Endpoint
from bitbench.quality.environment import LMEVAL
from bitbench.records.quality import TaskFailure, TaskResult
from bitbench.study.base import Json
from bitbench.study.quality import Quality, Scoring, is_task_file
from bitbench.util.child_environment import tool_environment
from bitbench.util.isolated.job_process import WorkerFailed, run_short_job
from bitbench.util.quotation import quote

ENVIRONMENT = LMEVAL.name
_WORKER = Path(__file__).parent / "workers" / "lm_eval_worker.py"


@dataclass(frozen=True)
class TaskTools:
    python: Path  # of the environment
    folder: Path  # of the study file: what names of task files are relative to
    tokenizer: Path  # folder of the model as it was before any recipe
    context_tokens: int


@dataclass(frozen=True)
class TaskOutcome:
    results: tuple[TaskResult, ...] = ()
    failures: tuple[TaskFailure, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()


NO_TASKS = TaskOutcome()


class _Said(BaseModel):
    """What the worker writes for one task."""

    results: list[TaskResult] = []
    failure: str | None = None
    versions: dict[str, str] = {}


def task_files(quality: Quality) -> tuple[str, ...]:
    """Those tasks that are files, by the name that the study gives them."""
    return tuple(name for name in quality.tasks if is_task_file(name))


def run_tasks(
    endpoint: Endpoint, scoring: Scoring, quality: Quality, tools: TaskTools, on_step: Callable[[str], None]
) -> TaskOutcome:
    """Each task in a process of its own: one that fails leaves the others alone."""
    results: list[TaskResult] = []
    failures: list[TaskFailure] = []
    versions: dict[str, str] = {}
    for number, task in enumerate(quality.tasks):
        on_step(f"task {task} ({number + 1} of {len(quality.tasks)})")
        said = _run(task, endpoint, scoring, quality, tools)
        results += said.results
        versions |= said.versions
        if said.failure is not None:
            failures.append(TaskFailure(task=task, cause=said.failure))
    return TaskOutcome(tuple(results), tuple(failures), tuple(sorted(versions.items())))


def _run(task: str, endpoint: Endpoint, scoring: Scoring, quality: Quality, tools: TaskTools) -> _Said:
    is_file = task in task_files(quality)
    job = {
        "is_file": is_file,
        "task": str((tools.folder / task).resolve()) if is_file else task,
        "url": f"{endpoint.url}/v1/completions",
        "model": endpoint.model,
        "tokenizer": str(tools.tokenizer),
        "max_length": tools.context_tokens,
        "limit": quality.task_samples,
        "tells_prompts": scoring is not Scoring.NEXT_TOKEN,
    }
    said: Json = {}
    try:
        for event in run_short_job(_WORKER, tools.python, job, env=_environment(endpoint.api_key)):
            said |= event
    except WorkerFailed as failure:
        said["failure"] = quote(str(failure), endpoint.api_key)
    return _Said.model_validate(said)


def _environment(key: str) -> dict[str, str]:
    """Datasets come from a hub, some of them only with a token. The key is the endpoint's."""
    fixed = {"OPENAI_API_KEY": key or "none", "TOKENIZERS_PARALLELISM": "false", "NO_PROXY": "127.0.0.1"}
    return tool_environment(fixed, hub_token=True)

"""Tasks of lm-eval, in an environment of its own, against the endpoint of an instance that runs.

It asks an endpoint, so that it needs no torch and is the same on every machine.
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
from bitbench.util.child_processes import tool_child_variables
from bitbench.util.isolated.job_process import WorkerFailed, run_short_job
from bitbench.util.text import printable, quote

_PINNED = Path(__file__).with_name("pinned")

LMEVAL = Environment(
    name="lmeval",
    locks={"cpu": _PINNED / "lmeval-cpu.txt"},
    source_lock=_PINNED / "lmeval-source.txt",
    import_check="import lm_eval.models.openai_completions, transformers",
    main_packages=("lm-eval", "transformers"),
)


ENVIRONMENT = LMEVAL.name
KEPT = 1000  # characters of an answer
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
    answers: tuple[TaskAnswer, ...] = ()
    failures: tuple[TaskFailure, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()


NO_TASKS = TaskOutcome()


class _Said(BaseModel):
    """What the worker writes for one task."""

    results: list[TaskResult] = []
    answers: list[TaskAnswer] = []
    failure: str | None = None
    versions: dict[str, str] = {}


def task_files(quality: Quality) -> tuple[str, ...]:
    """Those tasks that are files, by the name that the study gives them."""
    return tuple(task.name for task in quality.lm_eval_tasks if is_study_task_file(task.name))


def run_tasks(
    endpoint: Endpoint,
    scoring: Scoring,
    quality: Quality,
    tools: TaskTools,
    on_step: Callable[[str], None],
) -> TaskOutcome:
    """Each task in a process of its own: one that fails leaves the others alone."""
    results: list[TaskResult] = []
    answers: list[TaskAnswer] = []
    failures: list[TaskFailure] = []
    versions: dict[str, str] = {}
    for number, task in enumerate(quality.lm_eval_tasks):
        on_step(f"task {task.name} ({number + 1} of {len(quality.lm_eval_tasks)})")
        said = _run(task, endpoint, scoring, quality, tools)
        results += said.results
        answers += (
            answer.model_copy(update={"text": printable(answer.text, KEPT)})
            for answer in said.answers
        )
        versions |= said.versions
        if said.failure is not None:
            failures.append(TaskFailure(task=task.name, cause=said.failure))
    return TaskOutcome(
        tuple(results), tuple(answers), tuple(failures), tuple(sorted(versions.items()))
    )


def _run(
    task: LmEvalTask, endpoint: Endpoint, scoring: Scoring, quality: Quality, tools: TaskTools
) -> _Said:
    is_file = is_study_task_file(task.name)
    job = {
        "is_file": is_file,
        "task": str((tools.folder / task.name).resolve()) if is_file else task.name,
        "url": f"{endpoint.url}/v1/{'chat/' if task.chat else ''}completions",
        "chat": task.chat,
        "strips_thinking": task.think == "strip",
        "concurrency": task.concurrency,
        "model": endpoint.model,
        "tokenizer": str(tools.tokenizer),
        "max_length": tools.context_tokens,
        "limit": quality.task_samples,
        "tells_prompts": scoring is not Scoring.NEXT_TOKEN and not task.chat,
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
    fixed = {
        "OPENAI_API_KEY": key or "none",
        "TOKENIZERS_PARALLELISM": "false",
        "NO_PROXY": "127.0.0.1",
    }
    return tool_child_variables(fixed, hub_token=True)

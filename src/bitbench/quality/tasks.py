"""Tasks of lm-eval, in an environment of its own, against the endpoint of an instance that runs."""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from bitbench.core.asked.quality import Quality, Scoring
from bitbench.core.ports import Endpoint
from bitbench.core.recorded.quality import TaskFailure, TaskResult

ENVIRONMENT = "lmeval"
_WORKER = Path(__file__).parent / "workers" / "lm_eval_worker.py"
_LAST_LINES = 3  # of its log, for a cause


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
    return tuple(name for name in quality.tasks if name.endswith((".yaml", ".yml")))


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
        "task": str((tools.folder / task).resolve()) if is_file else task,
        "name": task,
        "url": f"{endpoint.url}/v1/completions",
        "model": endpoint.model,
        "tokenizer": str(tools.tokenizer),
        "max_length": tools.context_tokens,
        "limit": quality.task_samples,
        "tells_prompts": scoring is Scoring.PROMPT_LOGPROBS,
        "parent": os.getpid(),
    }
    with tempfile.TemporaryDirectory(prefix="bitbench-task-") as place:
        answer = Path(place) / "answer.json"
        done = subprocess.run(
            [tools.python, "-I", _WORKER, answer],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            check=False,
            cwd=place,
            env=_environment(endpoint.api_key),
        )
        if answer.exists():
            return _Said.model_validate_json(answer.read_text(encoding="utf-8"))
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return _Said(failure=" / ".join(lines[-_LAST_LINES:]) or f"lm-eval ended with {done.returncode}")


def _environment(key: str) -> dict[str, str]:
    """Ours, so that a cache of datasets and a proxy are found, without what would leak packages; with the key."""
    ours = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    fixed = {"OPENAI_API_KEY": key or "none", "TOKENIZERS_PARALLELISM": "false", "NO_PROXY": "127.0.0.1"}
    return ours | fixed

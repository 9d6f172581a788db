"""One task of lm-eval against an endpoint: `python -I lm_eval_worker.py JOB.json`, run in the lmeval environment.

Writes lines of JSON to its output ({"event": "versions" | "done" | "failed", …}) and everything else to its error
stream. Imports nothing of bitbench.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "util" / "isolated"))  # run in isolated mode, python looks nowhere else
from job_worker import JobError, Json, Reports, run  # type: ignore[import-not-found]

WRITES = "generate_until"  # lm-eval's word for a task whose answer is text; all others compare log-probabilities


def work(job: Json, reports: Reports) -> Json:
    import lm_eval

    reports.send("versions", versions={"lm-eval": lm_eval.__version__})
    try:
        return {"results": evaluate(job)}
    except (Exception, SystemExit) as error:
        last = str(error).strip().splitlines()[-1:] or [""]  # the first ones say what it was doing
        raise JobError(f"{type(error).__name__}: {last[0]}") from error


def evaluate(job: Json) -> list[Json]:
    import lm_eval
    from lm_eval.tasks import TaskManager

    task = job["task"]  # a name of the registry, or a file
    manager = TaskManager()
    if job["is_file"]:
        os.chdir(Path(task).parent)  # data files in a task are relative to it
    elif task not in manager.all_tasks:  # lm-eval would look for a file of this name, and run the code that it names
        raise ValueError(f"lm-eval has no task {task}")
    if not job["tells_prompts"]:
        refuse_likelihoods(manager.load([task])["tasks"].values())
    found = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "model": job["model"],
            "base_url": job["url"],
            "tokenizer": job["tokenizer"],
            "tokenizer_backend": "huggingface",
            "max_length": job["max_length"],
            "num_concurrent": 1,
            "max_retries": 1,
        },
        tasks=[task],
        limit=job["limit"],
        task_manager=manager,
        bootstrap_iters=1000,
        log_samples=False,
    )
    return [row for name, metrics in found["results"].items() for row in rows(name, metrics, found)]


def refuse_likelihoods(tasks: Iterable[Any]) -> None:
    if any(task.OUTPUT_TYPE != WRITES for task in tasks):
        raise ValueError(
            "it compares log-probabilities of prompts, which this engine's server does not return; run it on vllm "
            "or transformers"
        )


def rows(name: str, metrics: Json, found: Json) -> list[Json]:
    """`acc,none` and `acc_stderr,none` stand beside each other."""
    better = found.get("higher_is_better", {}).get(name, {})
    samples = found.get("n-samples", {}).get(name, {}).get("effective")
    result = []
    for key, value in metrics.items():
        metric, _, kind = key.partition(",")
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not kind or metric.endswith("_stderr"):
            continue
        error = metrics.get(f"{metric}_stderr,{kind}")
        result.append(
            {
                "task": name,
                "metric": key,
                "value": value,
                "standard_error": error if isinstance(error, (int, float)) else None,
                "samples": samples,
                "higher_is_better": better.get(metric),
            }
        )
    return result


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], work))

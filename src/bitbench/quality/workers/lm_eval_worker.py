"""One task of lm-eval against an endpoint: `python -I lm_eval_worker.py JOB.json`, run in the
lmeval environment.

It writes lines of JSON to its output ({"event": "versions" | "done" | "failed", …}) and
everything else to its error stream. It imports nothing of bitbench.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Needed because Python in isolated mode searches no other folder.
sys.path.append(str(Path(__file__).parents[2] / "util" / "isolated"))
from job_worker import JobError, Json, Reports, run_as_job_worker  # type: ignore[import-not-found]

END_OF_THINKING = "</think>"
# lm-eval's word for a task with text answers. All others compare log-probabilities.
WRITES = "generate_until"


def _run_job(job: Json, reports: Reports) -> Json:
    import lm_eval

    reports.send("versions", versions={"lm-eval": lm_eval.__version__})
    try:
        return _evaluate_with_lm_eval(job)
    except (Exception, SystemExit) as error:
        # The cause is in the last line. The first ones only describe the activity.
        lines = str(error).strip().splitlines() or [""]
        raise JobError(f"{type(error).__name__}: {lines[-1]}") from error


def _evaluate_with_lm_eval(job: Json) -> Json:
    import lm_eval
    from lm_eval.tasks import TaskManager

    task = job["task"]  # a name of the registry, or a file
    manager = TaskManager()
    if job["is_file"]:
        os.chdir(Path(task).parent)  # data files in a task are relative to it
    elif task not in manager.all_tasks:
        # lm-eval would search for a file of this name, and run the code in it.
        raise ValueError(f"lm-eval has no task {task}")
    if not job["tells_prompts"]:
        _refuse_likelihoods(manager.load([task])["tasks"].values())
    cut: set[str] = set()
    output = lm_eval.simple_evaluate(
        model=_make_client(job, cut),
        tasks=[task],
        limit=job["limit"],
        task_manager=manager,
        apply_chat_template=job["chat"],
        bootstrap_iters=1000,
        log_samples=True,
    )
    results: list[Json] = []
    for name, metrics in output["results"].items():
        results += _collect_results(name, metrics, output)
    answers: list[Json] = []
    for name, samples in output["samples"].items():
        answers += _iter_answers(name, samples, cut)
    return {"results": results, "answers": answers}


def _make_client(job: Json, cut: set[str]) -> Any:
    """Return lm-eval's client of the endpoint. It adds texts cut at the length limit to `cut`."""
    from lm_eval.api.registry import get_model

    client = get_model("local-chat-completions" if job["chat"] else "local-completions")

    class Noting(client):  # type: ignore[misc, valid-type]
        def parse_generations(self, outputs: Any, **more: Any) -> list[str]:
            texts = [text or "" for text in super().parse_generations(outputs=outputs, **more)]
            if not isinstance(outputs, list):
                outputs = [outputs]
            choices: list[Json] = []
            for output in outputs:
                choices += output["choices"]
            for text, choice in zip(texts, choices, strict=False):
                if choice.get("finish_reason") == "length":
                    cut.add(text)
            return texts

    options: dict[str, Any] = {"tokenizer": job["tokenizer"], "tokenizer_backend": "huggingface"}
    if job["chat"]:
        options = {"think_end_token": None}
        if job["strips_thinking"]:
            options = {"think_end_token": END_OF_THINKING}
    return Noting(
        model=job["model"],
        base_url=job["url"],
        max_length=job["max_length"],
        num_concurrent=job["concurrency"],
        max_retries=1,
        **options,
    )


def _iter_answers(name: str, samples: Iterable[Json], cut: set[str]) -> Iterable[Json]:
    """Yield the answers with metrics that are either right or wrong."""
    for sample in samples:
        response = sample["resps"][0][0]
        text = ""
        is_cut: bool | None = None
        if isinstance(response, str):  # otherwise a log-probability
            text = response
            is_cut = response in cut
        for metric in sample.get("metrics", ()):
            value = sample.get(metric)
            if value in (0, 1):
                yield {
                    "task": name,
                    "metric": f"{metric},{sample['filter']}",
                    "question": f"{sample['doc_id']} ({sample['prompt_hash'][:8]})",
                    "is_right": bool(value),
                    "is_cut": is_cut,
                    "text": text,
                }


def _refuse_likelihoods(tasks: Iterable[Any]) -> None:
    if any(task.OUTPUT_TYPE != WRITES for task in tasks):
        raise ValueError(
            "it compares log-probabilities of prompts, which this engine's server or its chat "
            "endpoint does not return; run it on vllm or transformers, without `chat`"
        )


def _collect_results(name: str, metrics: Json, output: Json) -> list[Json]:
    """Return the metrics with their standard errors: `acc,none` with `acc_stderr,none`."""
    better = output.get("higher_is_better", {}).get(name, {})
    samples = output.get("n-samples", {}).get(name, {}).get("effective")
    results = []
    for key, value in metrics.items():
        metric, _, kind = key.partition(",")
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not kind or metric.endswith("_stderr"):
            continue
        error = metrics.get(f"{metric}_stderr,{kind}")
        if not isinstance(error, (int, float)):
            error = None
        results.append(
            {
                "task": name,
                "metric": key,
                "value": value,
                "standard_error": error,
                "samples": samples,
                "higher_is_better": better.get(metric),
            }
        )
    return results


if __name__ == "__main__":
    sys.exit(run_as_job_worker(sys.argv[1], _run_job))

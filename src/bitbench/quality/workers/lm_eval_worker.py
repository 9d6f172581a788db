"""One task of lm-eval against an endpoint: `python -I lm_eval_worker.py JOB.json`, run in the lmeval environment.

Writes lines of JSON to its output ({"event": "versions" | "done" | "failed", …}) and everything else to its error
stream. Imports nothing of bitbench.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.append(
    str(Path(__file__).parents[2] / "util" / "isolated")
)  # run in isolated mode, python looks nowhere else
from job_worker import JobError, Json, Reports, run_as_job_worker  # type: ignore[import-not-found]

END_OF_THINKING = "</think>"
WRITES = "generate_until"  # lm-eval's word for a task whose answer is text; all others compare log-probabilities


def _work(job: Json, reports: Reports) -> Json:
    import lm_eval

    reports.send("versions", versions={"lm-eval": lm_eval.__version__})
    try:
        return _evaluate_with_lm_eval(job)
    except (Exception, SystemExit) as error:
        last = str(error).strip().splitlines()[-1:] or [""]  # the first ones say what it was doing
        raise JobError(f"{type(error).__name__}: {last[0]}") from error


def _evaluate_with_lm_eval(job: Json) -> Json:
    import lm_eval
    from lm_eval.tasks import TaskManager

    task = job["task"]  # a name of the registry, or a file
    manager = TaskManager()
    if job["is_file"]:
        os.chdir(Path(task).parent)  # data files in a task are relative to it
    elif (
        task not in manager.all_tasks
    ):  # lm-eval would look for a file of this name, and run the code that it names
        raise ValueError(f"lm-eval has no task {task}")
    if not job["tells_prompts"]:
        _refuse_likelihoods(manager.load([task])["tasks"].values())
    cut: set[str] = set()
    found = lm_eval.simple_evaluate(
        model=_lm_eval_client(job, cut),
        tasks=[task],
        limit=job["limit"],
        task_manager=manager,
        apply_chat_template=job["chat"],
        bootstrap_iters=1000,
        log_samples=True,
    )
    return {
        "results": [
            row
            for name, metrics in found["results"].items()
            for row in _lm_eval_results(name, metrics, found)
        ],
        "answers": [
            answer
            for name, kept in found["samples"].items()
            for answer in _lm_eval_answers(name, kept, cut)
        ],
    }


def _lm_eval_client(job: Json, cut: set[str]) -> Any:
    """lm-eval's own client of the endpoint, which notes in `cut` the texts that ended at the length limit."""
    from lm_eval.api.registry import get_model

    client = get_model("local-chat-completions" if job["chat"] else "local-completions")

    class Noting(client):  # type: ignore[misc, valid-type]
        def parse_generations(self, outputs: Any, **more: Any) -> list[str]:
            texts = [text or "" for text in super().parse_generations(outputs=outputs, **more)]
            several = outputs if isinstance(outputs, list) else [outputs]
            reasons = [
                choice.get("finish_reason") for output in several for choice in output["choices"]
            ]
            cut.update(
                text for text, reason in zip(texts, reasons, strict=False) if reason == "length"
            )
            return texts

    if job["chat"]:
        own = {"think_end_token": END_OF_THINKING if job["strips_thinking"] else None}
    else:
        own = {"tokenizer": job["tokenizer"], "tokenizer_backend": "huggingface"}
    return Noting(
        model=job["model"],
        base_url=job["url"],
        max_length=job["max_length"],
        num_concurrent=job["concurrency"],
        max_retries=1,
        **own,
    )


def _lm_eval_answers(name: str, kept: Iterable[Json], cut: set[str]) -> Iterable[Json]:
    """Of each sample the metrics that are right or wrong."""
    for sample in kept:
        said = sample["resps"][0][0]
        text = said if isinstance(said, str) else ""  # of log-probabilities: none
        for metric in sample.get("metrics", ()):
            value = sample.get(metric)
            if value in (0, 1):
                yield {
                    "task": name,
                    "metric": f"{metric},{sample['filter']}",
                    "question": f"{sample['doc_id']} ({sample['prompt_hash'][:8]})",
                    "is_right": bool(value),
                    "is_cut": said in cut if isinstance(said, str) else None,
                    "text": text,
                }


def _refuse_likelihoods(tasks: Iterable[Any]) -> None:
    if any(task.OUTPUT_TYPE != WRITES for task in tasks):
        raise ValueError(
            "it compares log-probabilities of prompts, which this engine's server or its chat endpoint does not "
            "return; run it on vllm or transformers, without `chat`"
        )


def _lm_eval_results(name: str, metrics: Json, found: Json) -> list[Json]:
    """`acc,none` and `acc_stderr,none` stand beside each other."""
    better = found.get("higher_is_better", {}).get(name, {})
    samples = found.get("n-samples", {}).get(name, {}).get("effective")
    result = []
    for key, value in metrics.items():
        metric, _, kind = key.partition(",")
        if (
            not isinstance(value, (int, float))
            or isinstance(value, bool)
            or not kind
            or metric.endswith("_stderr")
        ):
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
    sys.exit(run_as_job_worker(sys.argv[1], _work))

"""A small OpenAI-style server over OpenVINO GenAI, for measuring it: one event per token.

Run by path in the openvino environment. It imports nothing of ours. One thread computes the steps
of all current requests, in `openvino_model.py`, and sends each token at once. The HTTP part is
`completion_server.py`.
"""

import argparse
import json
import os
import queue
import sys
import threading
from pathlib import Path
from typing import Any

# In isolated mode, Python does not search the script's folder.
sys.path.append(str(Path(__file__).parent))
from completion_server import (  # type: ignore[import-not-found]
    CompletionServer,
    WholeJob,
    answer_whole_completion,
    end_completion_server,
)
from openvino_model import OpenvinoModel  # type: ignore[import-not-found]

FACTS = "bitbench-facts: "


def serve_openvino(model: OpenvinoModel, jobs: "queue.SimpleQueue[Any]") -> None:
    """Compute steps for ever.

    After an error the pipeline's state is unknown. The process then ends, with the error in its
    log.
    """
    taken: list[Any] = []
    while True:
        try:
            taken = [job for job in taken if not job.done.is_set()]
            for job in _collect_arrived_jobs(jobs, wait=not taken):
                taken.append(job)
                _take_job(job, model)
            model.step()
        except Exception as error:
            end_completion_server(error, taken)


def _take_job(job: Any, model: OpenvinoModel) -> None:
    if isinstance(job, WholeJob):
        answer_whole_completion(job, model)
        job.done.set()
    else:
        model.begin(job)


def _collect_arrived_jobs(jobs: "queue.SimpleQueue[Any]", *, wait: bool) -> list[Any]:
    """Return all jobs that arrived. With `wait`, wait for the first of them."""
    arrived = [jobs.get()] if wait else []
    while True:
        try:
            arrived.append(jobs.get_nowait())
        except queue.Empty:
            return arrived


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--context-tokens", type=int, required=True, help="of the longest request")
    parser.add_argument("--concurrency", type=int, required=True, help="requests computed at once")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--threads", type=int)
    parser.add_argument("--kv-cache-precision")
    arguments = parser.parse_args()
    try:
        model = OpenvinoModel(arguments)
    except RuntimeError as error:
        # OpenVINO's messages have several lines, but the end of a log must contain the reason.
        print(f"RuntimeError: {' '.join(str(error).split())}", flush=True)
        sys.exit(1)
    server = CompletionServer(arguments.port, os.environ.pop("BITBENCH_API_KEY"), model)
    print(FACTS + json.dumps(model.facts()), flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    serve_openvino(model, server.jobs)


if __name__ == "__main__":
    main()

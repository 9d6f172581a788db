"""A small OpenAI-style server over `transformers.generate`, for measuring it: static batches.

Run by path in the transformers environment. It imports nothing of ours. One call of `generate` in
`transformers_model.py` computes each batch: greedy, exactly `max_tokens` tokens per request, one
event per token. The HTTP part is `completion_server.py`.
"""

import argparse
import json
import os
import queue
import resource
import sys
import threading
import time
from http import HTTPStatus
from pathlib import Path

# In isolated mode, Python does not search the script's folder.
sys.path.append(str(Path(__file__).parent))
from completion_server import (  # type: ignore[import-not-found]
    CompletionServer,
    Handler,
    Job,
    WholeJob,
    answer_whole_completion,
    end_completion_server,
)
from transformers_model import QUANTIZE, TransformersModel  # type: ignore[import-not-found]
from transformers_profile import StepProfiler  # type: ignore[import-not-found]

FACTS = "bitbench-facts: "
# An incomplete batch starts after this time without a further request. On a busy machine, requests
# of one batch arrived 20 ms apart, and a split batch gives wrong figures. The last batch of a
# closed loop may never be full. It starts late by this time, and the log says so.
GATHER_S = 0.250


def _read_peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Switch:
    """A job that starts the profiler, with a name for its trace, or stops it without one.

    The computing thread runs it.
    """

    def __init__(self, name: str | None) -> None:
        self._name = name
        self.done = threading.Event()
        self.error: str | None = None

    def throw(self, profiler: StepProfiler) -> None:
        try:
            if self._name is None:
                profiler.stop()
            else:
                profiler.start(self._name)
        except (RuntimeError, OSError) as error:
            self.error = str(error)
        self.done.set()


class ProfilingHandler(Handler):  # type: ignore[misc]
    """A handler that also serves /start_profile and /stop_profile, as vLLM does."""

    more_paths = ("/start_profile", "/stop_profile")

    def answer_more(self, content: bytes) -> None:
        name: str | None = None
        prefix = str(json.loads(content or b"{}").get("profile_prefix") or "profile")
        if self.path == "/start_profile":
            name = Path(prefix).name
        switch = Switch(name)
        self.server.jobs.put(switch)
        switch.done.wait()
        if switch.error is not None:
            self.refuse(HTTPStatus.CONFLICT, f"the profiler: {switch.error}")
        else:
            self.answer(HTTPStatus.OK, {})


class TransformersServer(CompletionServer):  # type: ignore[misc]
    def __init__(self, port: int, key: str, model: TransformersModel) -> None:
        super().__init__(port, key, model, ProfilingHandler)


def _collect_batch(jobs: "queue.SimpleQueue[Job | Switch]", profiler: StepProfiler) -> list[Job]:
    """Return the next batch.

    It has as many requests as the first one announced, or fewer if no other comes for GATHER_S.
    """
    batch: list[Job] = []
    while not batch or len(batch) < batch[0].batch_size:
        timeout_s = GATHER_S if batch else None
        try:
            received = jobs.get(timeout=timeout_s)
            if isinstance(received, Switch):
                received.throw(profiler)
            else:
                batch.append(received)
        except queue.Empty:
            print(f"a batch of {len(batch)} where {batch[0].batch_size} were announced", flush=True)
            break
    return batch


def serve_transformers(model: TransformersModel, jobs: "queue.SimpleQueue[Job | Switch]") -> None:
    """Run batches for ever.

    After an error the state of torch is unknown. The process then ends, with the error in its log.
    """
    while True:
        batch = _collect_batch(jobs, model.profiler)
        began = time.perf_counter()
        try:
            for job in batch:
                if isinstance(job, WholeJob):
                    answer_whole_completion(job, model)
                    job.done.set()
            if streams := [job for job in batch if not job.done.is_set()]:
                model.generate(streams)
            if not all(job.done.is_set() for job in batch):
                raise RuntimeError("generate ended before every answer had its length")
        except Exception as error:
            end_completion_server(error, batch)
        took = time.perf_counter() - began
        print(
            f"batch of {len(batch)}: {took:.3f} s, peak {_read_peak_bytes() / 2**20:.0f} MiB",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--attn-implementation")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device")
    parser.add_argument(
        "--trace-folder", type=Path, help="makes /start_profile and /stop_profile work"
    )
    parser.add_argument("--quantize", choices=QUANTIZE, help="what to do with the linear layers")
    arguments = parser.parse_args()
    model = TransformersModel(arguments)
    server = TransformersServer(arguments.port, os.environ.pop("BITBENCH_API_KEY"), model)
    print(FACTS + json.dumps(model.facts()), flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # The main thread computes, because torch's number of threads was set in it.
    serve_transformers(model, server.jobs)


if __name__ == "__main__":
    main()

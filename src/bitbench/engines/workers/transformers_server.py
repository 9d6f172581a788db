"""A small OpenAI-style server over `transformers.generate`, for measuring it: static batches, one event per token.

Run by path in the transformers environment; imports nothing of ours. Requests are gathered into one batch, which is
run by one call of `generate` (greedy, exactly `max_tokens` tokens each), and every step's tokens are written to their
sockets at once by the thread that computes them. Requests without `stream` are answered by `whole_answers.py`;
for a VPTQ checkpoint `vptq_checkpoint.py` brings the layers.
"""

import argparse
import hmac
import importlib
import json
import os
import queue
import resource
import socket
import sys
import threading
import time
import traceback
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers.decoders import DecodeStream  # type: ignore[import-not-found]
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.generation.streamers import BaseStreamer

sys.path.append(str(Path(__file__).parent))  # run in isolated mode, python does not look beside the script
import vptq_checkpoint  # type: ignore[import-not-found]
import whole_answers  # type: ignore[import-not-found]
from transformers_kernels import kernel_choices, linear_layers, parts_of  # type: ignore[import-not-found]
from transformers_profile import StepProfiler  # type: ignore[import-not-found]

FACTS = "bitbench-facts: "
BATCH_HEADER = "X-Batch-Size"
# A batch that is not full starts when no further request came for so long. On a busy machine the requests of one
# batch were seen 20 ms apart, and a batch that is split gives wrong figures; one that is never filled (the last of a
# closed loop whose requests are not a multiple of its streams) is late by this once, and the log says so.
GATHER_S = 0.250
QUANTIZE = ("torchao-int8wo", "torchao-int8da-int8w")
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Job:
    """One request and the socket that waits for its answer. Written to by the computing thread alone."""

    def __init__(self, body: dict[str, Any], batch_size: int, connection: socket.socket, tokenizer: Any) -> None:
        self.prompt: list[int] = body["prompt"]
        self.max_tokens: int = body["max_tokens"]
        self.batch_size = batch_size
        self.done = threading.Event()
        self.error: str | None = None
        self.count = 0
        self._model = body.get("model", "")
        self._wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self._connection = connection
        self._tokenizer = tokenizer
        self._decoder = DecodeStream(skip_special_tokens=False)
        self._pending = STREAM_HEAD
        self.is_broken = False

    def add(self, token: int) -> None:
        """Sends a token at once; its text may be empty while a character is incomplete."""
        self.count += 1
        text = self._decoder.step(self._tokenizer, token) or ""
        self._send_event({"choices": [{"index": 0, "text": text, "token_ids": [token], "finish_reason": None}]})
        if self.count == self.max_tokens:
            self._finish()

    def _finish(self) -> None:
        self._send_event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
        if self._wants_usage:
            sent = len(self.prompt)
            usage = {"prompt_tokens": sent, "completion_tokens": self.count, "total_tokens": sent + self.count}
            self._send_event({"choices": [], "usage": usage})
        self._send(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        self.done.set()

    def _send_event(self, event: dict[str, Any]) -> None:
        text = json.dumps({"object": "text_completion", "model": self._model, **event}, separators=(",", ":"))
        self._send(_chunk(f"data: {text}\n\n".encode()))

    def _send(self, data: bytes) -> None:
        """A client that went away is noted; the others of its batch go on."""
        if self.is_broken:
            return
        try:
            self._connection.sendall(self._pending + data)
            self._pending = b""
        except OSError:
            self.is_broken = True


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class BatchStreamer(BaseStreamer):  # type: ignore[misc]
    """Receives the prompts, then one token per request and step."""

    def __init__(self, jobs: list[Job], profiler: StepProfiler) -> None:
        self._jobs = jobs
        self._profiler = profiler
        self._saw_prompts = False

    def put(self, value: torch.Tensor) -> None:
        if not self._saw_prompts:
            self._saw_prompts = True
            return
        for job, token in zip(self._jobs, value.tolist(), strict=True):
            if job.count < job.max_tokens:
                job.add(token)
        if any(job.count < job.max_tokens for job in self._jobs):
            self._profiler.begin_step(sequences=len(self._jobs))

    def end(self) -> None:
        pass


class Model:
    """The loaded model and what it says about itself."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        if arguments.threads:
            torch.set_num_threads(arguments.threads)
        self.profiler = StepProfiler(arguments.trace_folder)
        self._device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
        # It imports every quantization package that is there: not a part of loading weights.
        importlib.import_module("transformers.quantizers.auto")
        vptq_checkpoint.prepare(Path(arguments.model), self._device)
        began = time.perf_counter()
        self._model = AutoModelForCausalLM.from_pretrained(
            arguments.model, dtype=getattr(torch, arguments.dtype), attn_implementation=arguments.attn_implementation
        )
        self._model.to(self._device).eval()
        # Without an end token nothing but the length ends a sequence, and no step looks for it. It is taken from the
        # model's own configuration: where a request's configuration has none, `generate` falls back to that.
        self._eos = self._model.generation_config.eos_token_id
        self._model.generation_config.eos_token_id = None
        self._quantize: str | None = arguments.quantize
        if self._quantize:
            quantize(self._model, self._quantize)
        if getattr(self._model.config, "quantization_config", None) is not None:
            with torch.inference_mode():  # compressed-tensors unpacks its layers in the first pass
                self._model(torch.tensor([[0]], device=self._device))
        self._load_s = time.perf_counter() - began
        self._whole_tokenizer = AutoTokenizer.from_pretrained(arguments.model)
        self.tokenizer = self._whole_tokenizer.backend_tokenizer
        self.context_tokens: int | None = getattr(self._model.config, "max_position_embeddings", None)

    def generate(self, jobs: list[Job]) -> None:
        self.profiler.begin_step(prompts=len(jobs), prompt_tokens=sum(len(job.prompt) for job in jobs))
        longest = max(len(job.prompt) for job in jobs)
        padding = [longest - len(job.prompt) for job in jobs]
        prompts = [[0] * pad + job.prompt for pad, job in zip(padding, jobs, strict=True)]
        mask = [[0] * pad + [1] * len(job.prompt) for pad, job in zip(padding, jobs, strict=True)]
        config = GenerationConfig(
            do_sample=False, max_new_tokens=max(job.max_tokens for job in jobs), eos_token_id=None, pad_token_id=0
        )
        with torch.inference_mode():
            self._model.generate(
                torch.tensor(prompts, device=self._device),
                attention_mask=torch.tensor(mask, device=self._device),
                generation_config=config,
                streamer=BatchStreamer(jobs, self.profiler),
            )
        self.profiler.end_step()

    def answer(self, job: Any) -> None:
        whole_answers.answer(job, self._model, self._whole_tokenizer, self._eos)

    def facts(self) -> dict[str, Any]:
        threads = f", {torch.get_num_threads()} threads" if self._device == "cpu" else ""
        return {
            "engine_version": transformers.__version__,
            "versions": {
                "transformers": transformers.__version__,
                "torch": torch.__version__,
                **({"torchao": sys.modules["torchao"].__version__} if self._quantize else {}),
                "python": ".".join(map(str, sys.version_info[:3])),
            },
            "kernels": [f"attention {self._model.config._attn_implementation}", *linear_layers(self._model)],
            "kernel_choices": kernel_choices(self._model),
            "weight_bytes_loaded": loaded_bytes(self._model),
            "kv_value_bytes": self._model.dtype.itemsize,  # the cache grows in the type of what is computed
            "weight_load_s": round(self._load_s, 3),
            "prefix_caching": False,
            "notes": [f"{str(self._model.dtype).removeprefix('torch.')} on {self._device}{threads}"],
        }


def quantize(model: Any, method: str) -> None:
    """Every linear layer but the last one, whose weights most small models share with their input."""
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_

    configs = {"torchao-int8wo": Int8WeightOnlyConfig, "torchao-int8da-int8w": Int8DynamicActivationInt8WeightConfig}
    last = model.get_output_embeddings()
    quantize_(
        model,
        configs[method](),
        filter_fn=lambda module, _: isinstance(module, torch.nn.Linear) and module is not last,
    )


def loaded_bytes(model: Any) -> int:
    """Parameters and buffers as they lie in memory; what is tied is one tensor, and counted once."""
    return sum(part.nbytes for tensor in [*model.parameters(), *model.buffers()] for part in parts_of(tensor))


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Switch:
    """Starts the profiler (with a name for its trace) or stops it, in the thread that computes."""

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


class Handler(BaseHTTPRequestHandler):
    """GET /health, POST /v1/completions, and /start_profile and /stop_profile as vLLM has them."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "Server"

    def do_GET(self) -> None:
        known = self.path == "/health"
        self._answer(HTTPStatus.OK if known else HTTPStatus.NOT_FOUND, {"status": "ready" if known else "unknown path"})

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path not in ("/v1/completions", "/start_profile", "/stop_profile"):
            return self._refuse(HTTPStatus.NOT_FOUND, f"unknown path {self.path}")
        if not hmac.compare_digest(self.headers.get("Authorization", ""), f"Bearer {self.server.key}"):
            return self._refuse(HTTPStatus.UNAUTHORIZED, "wrong or missing key")
        if self.path != "/v1/completions":
            return self._switch_profiler(content)
        try:
            body = json.loads(content)
            whole = isinstance(body, dict) and not body.get("stream")
            check = whole_answers.fault_of if whole else fault_of
            fault = check(body, self.server.model.context_tokens)
            batch_size = int(self.headers.get(BATCH_HEADER) or 1)
        except ValueError as error:
            return self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        if fault:
            return self._refuse(HTTPStatus.BAD_REQUEST, fault)
        job: Any = (
            whole_answers.WholeJob(body)
            if whole
            else Job(body, batch_size, self.connection, self.server.model.tokenizer)
        )
        self.server.jobs.put(job)
        job.done.wait()
        self.close_connection = self.close_connection or job.is_broken or job.error is not None
        if job.error is not None and job.count == 0:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, job.error)
        elif whole:
            self._answer(HTTPStatus.OK, job.answer)
        return None

    def _switch_profiler(self, content: bytes) -> None:
        named = str(json.loads(content or b"{}").get("profile_prefix") or "profile")
        switch = Switch(Path(named).name if self.path == "/start_profile" else None)
        self.server.jobs.put(switch)
        switch.done.wait()
        if switch.error is not None:
            return self._refuse(HTTPStatus.CONFLICT, f"the profiler: {switch.error}")
        return self._answer(HTTPStatus.OK, {})

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        self._answer(status, {"error": {"message": message, "code": status}})

    def _answer(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """A line per request would be written while the next batch is computed."""


def fault_of(body: Any, context_tokens: int | None) -> str | None:
    """What is wrong with a request, or None."""
    if not isinstance(body, dict):
        return "the body must be a JSON object"
    prompt, count = body.get("prompt"), body.get("max_tokens")
    if not (isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt)):
        return "prompt must be a list of token ids"
    if not (type(count) is int and count > 0):
        return "max_tokens must be a positive number"
    if body.get("ignore_eos") is not True:
        return "a stream of this server always has max_tokens tokens: set ignore_eos"
    if context_tokens is not None and len(prompt) + count > context_tokens:
        return f"{len(prompt)} tokens in and {count} out are more than the model's context of {context_tokens}"
    return None


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 4096  # a batch of thousands connects at once

    def __init__(self, port: int, key: str, model: Model) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.key = key
        self.model = model
        self.jobs: queue.SimpleQueue[Job | Switch] = queue.SimpleQueue()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class names them
        print(f"a connection broke: {sys.exc_info()[1]}", flush=True)


def gather(jobs: "queue.SimpleQueue[Job | Switch]", profiler: StepProfiler) -> list[Job]:
    """The next batch: as many requests as the first one announced, or those that came one soon after the other."""
    batch: list[Job] = []
    while not batch or len(batch) < batch[0].batch_size:
        try:
            one = jobs.get(timeout=GATHER_S if batch else None)
            if isinstance(one, Switch):
                one.throw(profiler)
            else:
                batch.append(one)
        except queue.Empty:
            print(f"a batch of {len(batch)} where {batch[0].batch_size} were announced", flush=True)
            break
    return batch


def serve(model: Model, jobs: "queue.SimpleQueue[Job | Switch]") -> None:
    """Runs batches for ever. After an error the state of torch is unknown, so the process ends with it in its log."""
    while True:
        batch = gather(jobs, model.profiler)
        began = time.perf_counter()
        try:
            for job in batch:
                if isinstance(job, whole_answers.WholeJob):
                    model.answer(job)
                    job.done.set()
            if streams := [job for job in batch if not job.done.is_set()]:
                model.generate(streams)
            if not all(job.done.is_set() for job in batch):
                raise RuntimeError("generate ended before every answer had its length")
        except Exception as error:
            traceback.print_exc()
            for job in batch:
                job.error = f"{type(error).__name__}: {error}"
                job.done.set()
            time.sleep(0.2)  # for the answers to go out
            os._exit(1)
        took = time.perf_counter() - began
        print(f"batch of {len(batch)}: {took:.3f} s, peak {peak_bytes() / 2**20:.0f} MiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--attn-implementation")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device")
    parser.add_argument("--trace-folder", type=Path, help="makes /start_profile and /stop_profile work")
    parser.add_argument("--quantize", choices=QUANTIZE, help="what to do with the linear layers")
    arguments = parser.parse_args()
    model = Model(arguments)
    server = Server(arguments.port, os.environ.pop("BITBENCH_API_KEY"), model)
    print(FACTS + json.dumps(model.facts()), flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    serve(model, server.jobs)  # in the main thread, where torch's number of threads was set


if __name__ == "__main__":
    main()

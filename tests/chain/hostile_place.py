"""A folder in which everything that bitbench reads and did not write carries the canary."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import yaml

from bitbench.features.kernels.computing import KernelMachine, KernelRun, KernelTiming
from bitbench.quantize.manifest import CalibrationFacts, Manifest, StoredBits, WorkerFacts
from bitbench.records.folder import StudyFolder
from bitbench.study.recipe import Recipe
from bitbench.study.variant import Variant
from tests.support.hostile import hostile_study

WORD = "CANARY"
# What each would do: set the clipboard, clear the screen, reset, clear it by a C1 code, swallow what follows, go back
# and overwrite, turn the direction, hide, delete.
PIECES = (
    *("\x1b]52;c;Q0FO\x07", "\x1b[2J", "\x1bc", "\x9b2J", "\x90", "\r", "\b"),
    *("\u202e", "\u2066", "\u200f", "\u200b", "\ufeff", "\x7f"),
)
CANARY = "".join(f"{piece}{WORD}" for piece in PIECES) + f"[bold red]{WORD}[/][/nothing]"
SHAPE = {"concurrency": 1, "input_tokens": 8, "output_tokens": 1}
GOOD = {
    "name": "x",
    "description": CANARY,
    "engines": [
        {"engine": "null", "name": CANARY, "args": {"ttft": "200ms"}, "env": {"CANARY": CANARY}},
        {"engine": "null", "name": f"fails {CANARY}", "args": {"fail": "exit"}},
        {
            "engine": "endpoint",
            "name": f"there {CANARY}",
            "args": {"url": "http://127.0.0.1:9", "model": CANARY},
        },
    ],
    "workloads": [{"name": "w", **SHAPE}],
    "measure": {"starts": 1, "trials": 1},
}
WRONG = {
    "field": {CANARY: 1},
    "engine": {"engines": [CANARY]},
    "argument": {"engines": [{"engine": "null", "args": {CANARY: CANARY}}]},
    "model": {"engines": ["transformers"], "models": [CANARY]},
    "recipe": {"engines": ["transformers"], "models": ["smollm2-135m"], "recipes": [CANARY]},
    "recipe-file": {
        "engines": ["transformers"],
        "models": ["smollm2-135m"],
        "recipes": [f"{CANARY}.yaml"],
    },
    "baseline": {"engines": ["null"], "baseline": CANARY},
    "workload": {"engines": ["null"], "workloads": [CANARY]},
    "value": {"engines": ["null"], "seed": CANARY},
    "duration": {"engines": ["null"], "measure": {"budget": CANARY}},
    "text": {"engines": ["null"], "workloads": [{"name": "w", **SHAPE, "text": {"file": CANARY}}]},
}


def write_place(place: Path) -> Path:
    (place / "good.yaml").write_text(yaml.safe_dump(GOOD))
    for name, fields in WRONG.items():
        content = {"name": "x", "workloads": ["interactive"], **fields}
        (place / f"wrong-{name}.yaml").write_text(yaml.safe_dump(content))
    (place / "twice.yaml").write_text(yaml.safe_dump({CANARY: 1}) * 2)
    for name in ("records", "later"):
        _write_records(place / name)
    _write_kernels(place / "kernels")
    _write_results(place / "results.json")
    _write_home(place / "home")
    return place


def _write_records(path: Path) -> None:
    _, trials, instances, lock = hostile_study(CANARY)
    names = {trial.point.config.variant for trial in trials}
    variants = tuple(Variant(name=name, model=CANARY, recipe=CANARY) for name in sorted(names))
    lock = lock.model_copy(update={"plan": lock.plan.model_copy(update={"variants": variants})})
    with StudyFolder(path).open_writer() as writer:
        writer.write_study("name: x\nengines: ['null']\nworkloads: [interactive]\n")
        writer.write_lock(lock)
        for instance in instances:
            writer.append_instance(instance)
        for trial in trials:
            writer.append_trial(trial, None)


def _write_kernels(folder: Path) -> None:
    shape = {"in_features": 64, "out_features": 64, "batch": 1, "weight_bytes": 8192}
    machine = {"device": "cpu", "read_bytes_per_s": 1e10, "flops_per_s": 1e12, "cold_bytes": 1,
               "seed": 0, "threads": 2}  # fmt: skip
    run = KernelRun(
        machine=KernelMachine(cpu_model=CANARY, torch=CANARY, isa=CANARY, **machine),
        timings=(
            KernelTiming(case=CANARY, **shape, error=0.0, seconds=(1e-5,) * 9),
            KernelTiming(case=f"failed {CANARY}", **shape, error=None, cause=CANARY),
        ),
    )
    folder.mkdir()
    (folder / "records.json").write_text(run.model_dump_json())


def _write_results(path: Path) -> None:
    known = Path(__file__).parents[1] / "unit" / "data" / "imports" / "vllm-serve-1.json"
    names = {"model_id": CANARY, "tokenizer_id": CANARY, "backend": CANARY, "label": CANARY}
    path.write_text(json.dumps({**json.loads(known.read_text()), **names}))


def _write_home(home: Path) -> None:
    manifest = Manifest(
        key="k", model=CANARY, model_hash="h", seed=0, created_at=CANARY, seconds=1.0, weight_bytes=1, size_bytes=1,
        content_hash="h", files={"f": "h"}, bits_per_weight=StoredBits(),
        recipe=Recipe.model_validate(
            {"name": "r", "description": CANARY, "steps": [{"step": "quantize", "weight_bits": 8, "ignore": [CANARY]}]}
        ),
        calibration=CalibrationFacts(description=CANARY, content_hash="h"),
        work=WorkerFacts(
            versions={CANARY: CANARY}, rounded_instead=(CANARY,), stored_otherwise={CANARY: 1},
        ),
    )  # fmt: skip
    variant = home / "variants" / f"m--{CANARY}--k".replace("/", "-")
    variant.mkdir(parents=True)
    (variant / "manifest.json").write_text(manifest.model_dump_json())
    environment = home / "envs" / "vllm"
    environment.mkdir(parents=True)
    installed = {
        "name": "vllm",
        "path": "",
        "complete": True,
        "versions": {"vllm": CANARY, "torch": CANARY},
    }
    (environment / "bitbench-environment.json").write_text(json.dumps(installed))


class _HostileServer(BaseHTTPRequestHandler):
    """Its model and its tokens are the canary, or all that it says is an error with the canary in it."""

    protocol_version = "HTTP/1.1"
    refuses = False

    def do_GET(self) -> None:
        self._send(200, json.dumps({"data": [{"id": CANARY}]}).encode())

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.refuses:
            self._send(400, json.dumps({"error": {"message": CANARY, "type": CANARY}}).encode())
            return
        time.sleep(
            0.2
        )  # so that a client that is a little late on a busy machine counts all the same
        count = int(asked["max_tokens"])
        events = [{"choices": [{"text": CANARY, "finish_reason": None}]}] * count
        usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": count}
        body = "".join(
            f"data: {json.dumps(event)}\n\n" for event in [*events, {"choices": [], "usage": usage}]
        )
        self._send(200, f"{body}data: [DONE]\n\n".encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class _RefusingServer(_HostileServer):
    refuses = True


@contextmanager
def hostile_server(*, refuses: bool) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _RefusingServer if refuses else _HostileServer)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()

"""The transformers engine: how its server is started, and the server itself over a model that answers by rote."""

import http.client
import importlib.util
import json
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bitbench.engines import transformers as engine_module
from bitbench.engines.transformers import TransformersEngine, command_line, read_transformers_facts
from bitbench.ports import Launch, Load
from bitbench.study.study import EngineSetup
from bitbench.study.variant import AtLoad, ModelFacts, Variant
from bitbench.study.workload import BUILT_IN_WORKLOADS
from bitbench.util.errors import StudyFileError
from tests.busy_machine import wait_for

SERVER = Path(engine_module.__file__).parent / "workers" / "transformers_server.py"
VARIANT = Variant(
    name="m/bf16",
    model="m",
    recipe="bf16",
    path=Path("/models/m"),
    facts=ModelFacts(context_tokens=8192),
)
KEY = "secret"


def setup(**args: Any) -> EngineSetup:
    return EngineSetup(name="transformers", engine="transformers", args=args)


def test_command_line_and_refusals() -> None:
    launch = Launch(
        setup=setup(dtype="float32", attn_implementation="eager", threads=2),
        variant=VARIANT,
        python=Path("/env/bin/python"),
        log_file=Path("log"),
        loads=(Load(1, 192),),
        seed=0,
    )
    command = command_line(launch, 8123)
    assert command[:2] == ["/env/bin/python", "-I"]
    assert command[3:] == [
        "--model=/models/m", "--port=8123", "--dtype=float32", "--attn-implementation=eager", "--threads=2",
    ]  # fmt: skip
    assert (
        command_line(replace(launch, trace_folder=Path("/traces")), 8123)[-1]
        == "--trace-folder=/traces"
    )
    at_load = VARIANT.model_copy(
        update={"at_load": AtLoad(engine="transformers", quantize="torchao-int8wo")}
    )
    assert command_line(replace(launch, variant=at_load), 8123)[-1] == "--quantize=torchao-int8wo"
    engine = TransformersEngine()
    assert engine.refuse(setup(), at_load, BUILT_IN_WORKLOADS["base"]) is None
    unknown = VARIANT.model_copy(update={"at_load": AtLoad(engine="transformers", quantize="int3")})
    assert "does not support int3 here; it supports torchao-int8wo and" in (
        engine.refuse(setup(), unknown, BUILT_IN_WORKLOADS["base"]) or ""
    )
    assert engine.refuse(setup(), VARIANT, BUILT_IN_WORKLOADS["base"]) is None
    assert "supports 8,192" in (
        engine.refuse(setup(), VARIANT, BUILT_IN_WORKLOADS["long_context"]) or ""
    )
    with pytest.raises(StudyFileError, match="has no argument enforce-eager"):
        engine.refuse(setup(**{"enforce-eager": True}), VARIANT, BUILT_IN_WORKLOADS["base"])


def test_facts_come_from_the_servers_own_line() -> None:
    choices = [{"kind": "attention", "kernel": "sdpa", "source": "modules"}]
    said = {
        "engine_version": "5.19.0", "kernel_choices": choices, "weight_bytes_loaded": 7, "kv_value_bytes": 4,
    }  # fmt: skip
    log = f"a warning\nbitbench-facts: {json.dumps(said)}\nbatch of 1: 2.1 s"
    facts = read_transformers_facts(log, ModelFacts(layers=30, kv_heads=3, head_size=64))
    assert (facts.engine_version, facts.kernels, facts.weight_bytes_loaded) == (
        "5.19.0",
        ("attention: sdpa",),
        7,
    )
    assert facts.kv_bytes_per_token == 2 * 30 * 3 * 64 * 4
    assert read_transformers_facts(log, ModelFacts()).kv_bytes_per_token is None
    assert read_transformers_facts("nothing yet", ModelFacts()).engine_version is None


@pytest.mark.usefixtures("server")
def test_loaded_bytes_are_parameters_and_buffers() -> None:
    def tensors(*sizes: int) -> Callable[[], Iterator[types.SimpleNamespace]]:
        return lambda: (types.SimpleNamespace(nbytes=size) for size in sizes)

    model = types.SimpleNamespace(parameters=tensors(100, 10), buffers=tensors(4))
    assert sys.modules["transformers_model"].transformers_model_bytes(model) == 114


class Decoder:
    """Text of a token, as tokenizers' DecodeStream gives it: None while a character is incomplete."""

    def __init__(self, **_: object) -> None: ...

    def step(self, _: object, token: int) -> str | None:
        return None if token % 2 else f"<{token}>"


class Row(list[int]):
    def tolist(self) -> list[int]:
        return list(self)


class RecordingProfiler:
    """What the server asks of its profiler, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.threads: set[str] = set()

    def start(self, name: str) -> None:
        self._note(f"start {name}")

    def stop(self) -> None:
        if "stop" in self.calls:
            raise RuntimeError("it does not run")
        self._note("stop")

    def begin_step(self, *, prompts: int = 0, prompt_tokens: int = 0, sequences: int = 0) -> None:
        self._note(f"{prompts} prompts of {prompt_tokens}, {sequences} sequences")

    def end_step(self) -> None:
        self._note("end")

    def _note(self, call: str) -> None:
        self.calls.append(call)
        self.threads.add(threading.current_thread().name)


class RoteModel:
    """Answers token n of request r with 100 r + n; remembers its batches."""

    tokenizer = None
    context_tokens = 64

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.error: Exception | None = None
        self.too_few = 0
        self.profiler = RecordingProfiler()

    def generate(self, jobs: list[Any]) -> None:
        self.batches.append([len(job.prompt) for job in jobs])
        if self.error:
            raise self.error
        streamer = sys.modules["transformers_model"].BatchStreamer(jobs, self.profiler)
        streamer.put(Row())
        for step in range(max(job.max_tokens for job in jobs) - self.too_few):
            streamer.put(Row(100 * number + step for number in range(len(jobs))))
            time.sleep(0.005)

    def write(self, prompt: list[int], *_: object, **__: object) -> list[int]:
        return prompt[::-1]

    def text_of(self, tokens: list[int], **_: object) -> str:
        return " ".join(map(str, tokens))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The worker's module, with stand-ins for what only its environment has."""
    stand_ins: dict[str, dict[str, Any]] = {
        "torch": {"Tensor": object},
        "transformers": {
            "AutoModelForCausalLM": None,
            "AutoTokenizer": None,
            "GenerationConfig": None,
        },
        "transformers.generation": {},
        "transformers.generation.streamers": {"BaseStreamer": object},
        "tokenizers": {},
        "tokenizers.decoders": {"DecodeStream": Decoder},
    }
    for name, members in stand_ins.items():
        module = types.ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("transformers_server", SERVER)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def model() -> RoteModel:
    return RoteModel()


@pytest.fixture
def port(server: types.ModuleType, model: RoteModel) -> Iterator[int]:
    running = server.TransformersServer(0, KEY, model)
    threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
    threading.Thread(
        target=server.serve_transformers, args=(model, running.jobs), daemon=True
    ).start()
    yield running.server_address[1]
    running.shutdown()
    running.server_close()


def body(**changes: Any) -> dict[str, Any]:
    wanted = {
        "prompt": [5, 6, 7],
        "max_tokens": 4,
        "stream": True,
        "ignore_eos": True,
        "model": "m",
    }
    return wanted | {"stream_options": {"include_usage": True}} | changes


def ask(
    connection: http.client.HTTPConnection, content: dict[str, Any], batch: int = 1, key: str = KEY
) -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {key}", "X-Batch-Size": str(batch)}
    connection.request("POST", "/v1/completions", json.dumps(content), headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def events(data: bytes) -> list[Any]:
    parts = [part.removeprefix(b"data: ") for part in data.split(b"\n\n") if part]
    assert parts[-1] == b"[DONE]"
    return [json.loads(part) for part in parts[:-1]]


def connect(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=10)


def test_every_token_is_an_event_and_usage_comes_last(port: int) -> None:
    connection = connect(port)
    for _ in range(2):  # the connection is kept
        status, data = ask(connection, body())
        assert status == 200
        *tokens, finish, usage = events(data)
        assert [event["choices"][0]["token_ids"] for event in tokens] == [[0], [1], [2], [3]]
        assert [event["choices"][0]["text"] for event in tokens] == ["<0>", "", "<2>", ""]
        assert finish["choices"][0] == {"index": 0, "text": "", "finish_reason": "length"}
        assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def test_usage_only_when_asked_for(port: int) -> None:
    _, data = ask(connect(port), body(stream_options=None))
    assert all(event["choices"] for event in events(data))


def ask_together(port: int, contents: list[dict[str, Any]], batch: int) -> list[list[Any]]:
    answers: list[list[Any]] = [[] for _ in contents]

    def one(number: int) -> None:
        answers[number] = events(ask(connect(port), contents[number], batch)[1])

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(contents))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_announced_requests_are_one_batch_and_each_gets_its_own_length(
    port: int, model: RoteModel, server: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "GATHER_S", 30.0)  # a busy machine may stall the threads that ask
    contents = [body(prompt=[1] * (n + 1), max_tokens=n + 2) for n in range(4)]
    answers = ask_together(port, contents, batch=4)
    assert sorted(model.batches[0]) == [1, 2, 3, 4]
    assert len(model.batches) == 1
    assert [answer[-1]["usage"]["completion_tokens"] for answer in answers] == [2, 3, 4, 5]
    assert [answer[-1]["usage"]["prompt_tokens"] for answer in answers] == [1, 2, 3, 4]


@pytest.mark.timeout(60)
def test_a_batch_that_does_not_fill_starts_all_the_same(port: int, model: RoteModel) -> None:
    (answer,) = ask_together(port, [body()], batch=8)
    assert answer[-1]["usage"]["completion_tokens"] == 4
    assert [len(batch) for batch in model.batches] == [1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": "text"}, "list of token ids"),
        ({"prompt": [True]}, "list of token ids"),
        ({"max_tokens": 0}, "positive"),
        ({"ignore_eos": False}, "always has max_tokens"),
        ({"stream": False, "prompt": [[5, 6], []]}, "list of token ids"),
        ({"stream": False, "max_tokens": 62}, "context of 64"),
        ({"stream": False, "temperature": 0.7}, "greedily"),
        ({"stream": False, "prompt_logprobs": 4}, "max_tokens 1 only"),
        ({"max_tokens": 62}, "context of 64"),
    ],
)
def test_a_request_that_it_cannot_serve_is_refused(
    port: int, changes: dict[str, Any], message: str
) -> None:
    connection = connect(port)
    status, data = ask(connection, body(**changes))
    assert status == 400
    assert message in json.loads(data)["error"]["message"]
    assert ask(connection, body())[0] == 200


def test_without_a_stream_the_answer_comes_whole(port: int) -> None:
    connection = connect(port)
    status, data = ask(connection, body(stream=False, prompt=[[5, 6], [7, 8, 9]]))
    assert status == 200
    first, second = json.loads(data)["choices"]
    assert [choice["token_ids"] for choice in (first, second)] == [[6, 5], [9, 8, 7]]
    assert (second["text"], second["finish_reason"]) == ("9 8 7", "stop")
    assert ask(connection, body())[0] == 200  # the same connection goes on with a stream


def test_the_key_is_asked_for(port: int) -> None:
    assert ask(connect(port), body(), key="wrong")[0] == 401
    connection = connect(port)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200


def test_a_client_that_goes_away_does_not_disturb_the_others(port: int) -> None:
    leaving = connect(port)
    headers = {"Authorization": f"Bearer {KEY}", "X-Batch-Size": "2"}
    leaving.request("POST", "/v1/completions", json.dumps(body(max_tokens=40)), headers)
    other = threading.Thread(
        target=lambda: results.append(ask(connect(port), body(max_tokens=40), batch=2))
    )
    results: list[tuple[int, bytes]] = []
    other.start()
    leaving.getresponse()
    leaving.close()
    other.join()
    assert events(results[0][1])[-1]["usage"]["completion_tokens"] == 40
    assert ask(connect(port), body())[0] == 200


def test_an_error_while_computing_is_told_and_ends_the_process(
    port: int, model: RoteModel, server: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    exits: list[int] = []
    monkeypatch.setattr(server.os, "_exit", exits.append)
    model.error = MemoryError("no room")
    status, data = ask(connect(port), body())
    assert status == 500
    assert json.loads(data)["error"]["message"] == "MemoryError: no room"
    assert wait_for(lambda: bool(exits))
    assert exits == [1]


def test_an_answer_that_ends_early_is_an_error_and_nobody_waits_for_the_rest(
    port: int, model: RoteModel, server: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    exits: list[int] = []
    monkeypatch.setattr(server.os, "_exit", exits.append)
    model.too_few = 1
    with pytest.raises(http.client.IncompleteRead):
        ask(connect(port), body())
    assert wait_for(lambda: bool(exits))
    assert exits == [1]


def switch(port: int, path: str, key: str = KEY) -> int:
    connection = connect(port)
    connection.request(
        "POST", path, json.dumps({"profile_prefix": "decode"}), {"Authorization": f"Bearer {key}"}
    )
    return connection.getresponse().status


def test_the_profiler_is_switched_by_the_thread_that_computes_and_sees_its_steps(
    port: int, model: RoteModel
) -> None:
    assert switch(port, "/start_profile", key="wrong") == 401
    assert switch(port, "/start_profile") == 200
    ask(connect(port), body(max_tokens=3))
    assert switch(port, "/stop_profile") == 200
    assert switch(port, "/stop_profile") == 409
    # No step begins after the last token: its mark would be taken for a step that was never run.
    assert model.profiler.calls == [
        "start decode", "0 prompts of 0, 1 sequences", "0 prompts of 0, 1 sequences", "stop",
    ]  # fmt: skip
    assert len(model.profiler.threads) == 1

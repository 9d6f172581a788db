"""The OpenVINO engine: how its server is started, and the server itself over a pipeline that answers by rote."""

import argparse
import http.client
import importlib.util
import json
import sys
import threading
import time
import types
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from bitbench.engines import openvino as engine_module
from bitbench.engines.openvino import UNSUPPORTED, OpenvinoEngine, command_line, read_openvino_facts
from bitbench.engines.server import ServerInstance, ServerPlan
from bitbench.planning.plan import complete_engine_setup
from bitbench.ports import InstanceFailed, Launch, Load
from bitbench.records.trial import Outcome
from bitbench.study.study import Argument, EngineSetup
from bitbench.study.variant import ModelFacts, Variant
from bitbench.study.workload import BUILT_IN_WORKLOADS
from bitbench.util.errors import EngineEnvironmentError, ModelError, StudyFileError
from tests.unit.test_transformers_engine import (
    KEY,
    Decoder,
    ask,
    ask_together,
    body,
    connect,
    events,
)

DATA = Path(__file__).parent / "data"
WORKERS = Path(engine_module.__file__).parent / "workers"
VARIANT = Variant(
    name="m/openvino-int8",
    model="m",
    recipe="openvino-int8",
    form="openvino",
    path=Path("/variants/m"),
    facts=ModelFacts(context_tokens=8192),
)
EOS = 2


def setup(kv_cache: str | None = None, **args: Argument) -> EngineSetup:
    return EngineSetup(name="openvino", engine="openvino", args=args, kv_cache=kv_cache)


LAUNCH = Launch(
    setup=setup(),
    variant=VARIANT,
    python=Path("/env/bin/python"),
    log_file=Path("log"),
    loads=(Load(8, 192),),
    seed=0,
)


def test_the_command_line() -> None:
    command = command_line(LAUNCH, 8123)
    assert command[:3] == ["/env/bin/python", "-I", str(WORKERS / "openvino_server.py")]
    assert command[3:] == [
        "--model=/variants/m",
        "--port=8123",
        "--context-tokens=192",
        "--concurrency=8",
    ]
    chosen = setup(dtype="float32", threads=2, **{"kv-cache-precision": "u8"})
    assert command_line(replace(LAUNCH, setup=chosen), 8123)[7:] == [
        "--dtype=float32", "--kv-cache-precision=u8", "--threads=2",
    ]  # fmt: skip
    assert command_line(replace(LAUNCH, dtype="float32"), 8123)[7:] == ["--dtype=float32"]
    said = replace(LAUNCH, dtype="float32", setup=setup(dtype="bfloat16"))
    assert command_line(said, 8123)[7:] == ["--dtype=bfloat16"]
    with pytest.raises(EngineEnvironmentError, match="bitbench env create openvino"):
        command_line(replace(LAUNCH, python=None), 8123)
    with pytest.raises(ModelError, match="needs a model"):
        command_line(replace(LAUNCH, variant=VARIANT.model_copy(update={"path": None})), 8123)


def test_what_it_refuses() -> None:
    engine, base = OpenvinoEngine(), BUILT_IN_WORKLOADS["base"]
    assert engine.refuse(setup(), VARIANT, base) is None
    assert (
        engine.refuse(setup(), VARIANT.model_copy(update={"form": "openvino/dense"}), base) is None
    )
    for form in ("dense", "gguf", "compressed-tensors/w8a8-int"):
        refused = engine.refuse(setup(), VARIANT.model_copy(update={"form": form}), base)
        assert "add the recipe openvino-bf16" in (refused or "")
    assert "supports 8,192" in (
        engine.refuse(setup(), VARIANT, BUILT_IN_WORKLOADS["long_context"]) or ""
    )
    with pytest.raises(
        StudyFileError, match="openvino has no argument thread; did you mean `threads`"
    ):
        engine.refuse(setup(thread=2), VARIANT, base)
    with pytest.raises(StudyFileError, match="openvino's argument dtype"):
        engine.refuse(setup(dtype="int8"), VARIANT, base)


def test_the_type_of_the_kv_cache_is_an_axis() -> None:
    engine = OpenvinoEngine()
    chosen = complete_engine_setup(setup("bf16"), engine)
    assert engine.refuse(chosen, VARIANT, BUILT_IN_WORKLOADS["base"]) is None
    assert command_line(replace(LAUNCH, setup=chosen), 1)[7:] == ["--kv-cache-precision=bf16"]
    with pytest.raises(StudyFileError, match="has no KV cache type fp8"):
        complete_engine_setup(setup("fp8"), engine)


def failure_of(said: str, tmp_path: Path) -> tuple[Outcome, str]:
    program = f"import sys; print({said!r}); sys.exit(1)"
    endpoint = engine_module.Endpoint("http://127.0.0.1:9", "m")
    instance = ServerInstance(
        ServerPlan(
            command=[sys.executable, "-c", program],
            env={},
            endpoint=endpoint,
            log_file=tmp_path / "log",
            read_facts=lambda log: read_openvino_facts(log, VARIANT),
            unsupported=UNSUPPORTED,
        )
    )
    with pytest.raises(InstanceFailed) as failed:
        instance.wait_ready(30.0)
    return failed.value.failure.outcome, failed.value.failure.cause


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        (
            "RuntimeError: Exception from src/x.cpp:1: Operation of type Foo(opset1) is not supported.",
            "unsupported",
        ),
        (
            "RuntimeError: Check 'false' failed at src/y.cpp:7: [CPU] Unsupported KV cache precision",
            "unsupported",
        ),
        ("MemoryError: std::bad_alloc", "oom"),
        ("RuntimeError: Can not open file openvino_model.xml", "crashed"),
    ],
)
def test_why_it_did_not_start(said: str, outcome: str, tmp_path: Path) -> None:
    found, cause = failure_of(said, tmp_path)
    assert found.value == outcome
    assert said in cause


# The server and its model, over stand-ins for OpenVINO.


class Handle:
    """A request of the stand-in pipeline: token n of a prompt that begins with p is 100 p + n."""

    def __init__(self, prompt: list[int], config: Any) -> None:
        self.prompt, self.config = prompt, config
        self.made: list[int] = []
        self.unread: list[int] = []
        self.status = "RUNNING"

    def can_read(self) -> bool:
        return bool(self.unread)

    def read(self) -> dict[int, Any]:
        tokens, self.unread = self.unread, []
        return {0: types.SimpleNamespace(generated_ids=tokens)}

    def get_status(self) -> str:
        return self.status

    def cancel(self) -> None:
        self.status = "CANCEL"

    def stop(self) -> None:
        self.status = "STOP"


class Pipeline:
    """One token for each running request in each step; remembers how many were computed together."""

    made: ClassVar[list["Pipeline"]] = []

    def __init__(
        self, folder: str, scheduler: Any, device: str, properties: dict[str, Any]
    ) -> None:
        self.folder, self.scheduler, self.device, self.properties = (
            folder,
            scheduler,
            device,
            properties,
        )
        self.handles: list[Handle] = []
        self.together: list[int] = []
        self.ends_after: int | None = None
        self.error: Exception | None = None
        Pipeline.made.append(self)

    def add_request(self, number: int, ids: Any, config: Any) -> Handle:
        del number
        self.handles.append(Handle(ids[0].tolist(), config))
        return self.handles[-1]

    def has_non_finished_requests(self) -> bool:
        return any(handle.status == "RUNNING" for handle in self.handles)

    def step(self) -> None:
        if self.error:
            raise self.error
        running = [handle for handle in self.handles if handle.status == "RUNNING"]
        self.together.append(len(running))
        time.sleep(0.005)
        for handle in running:
            token = 100 * handle.prompt[0] + len(handle.made)
            handle.made.append(token)
            handle.unread.append(token)
            stops = getattr(handle.config, "stop_token_ids", ())
            if (
                len(handle.made) == (self.ends_after or handle.config.max_new_tokens)
                or token in stops
            ):
                handle.status = "FINISHED"

    def get_metrics(self) -> Any:
        return types.SimpleNamespace(
            kv_cache_size_in_bytes=self.scheduler.num_kv_blocks * 32 * 1000
        )


class TextTokenizer:
    @staticmethod
    def from_file(path: str) -> "TextTokenizer":
        assert Path(path).exists()
        return TextTokenizer()

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        return " ".join(map(str, tokens)) + ("" if skip_special_tokens else "!")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """The worker's modules, with stand-ins for what only its environment has."""
    stand_ins: dict[str, dict[str, Any]] = {
        "openvino": {
            "Tensor": np.asarray,
            "get_version": lambda: "2026.4",
            "Type": int,
            "Core": None,
            "opset13": None,
        },
        "openvino_genai": {
            "ContinuousBatchingPipeline": Pipeline,
            "SchedulerConfig": lambda: types.SimpleNamespace(max_num_batched_tokens=256),
            "GenerationConfig": types.SimpleNamespace,
            "GenerationStatus": types.SimpleNamespace(RUNNING="RUNNING"),
            "get_version": lambda: "2026.4.1.0-3408-ab01d1771e4",
        },
        "tokenizers": {"Tokenizer": TextTokenizer},
        "tokenizers.decoders": {"DecodeStream": Decoder},
    }
    for name, members in stand_ins.items():
        module = types.ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("completion_server", "openvino_model"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    spec = importlib.util.spec_from_file_location("openvino_server", WORKERS / "openvino_server.py")
    assert spec is not None
    assert spec.loader is not None
    server = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(server)
    model = sys.modules["openvino_model"]
    chosen = {
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": "u8",
        "INFERENCE_NUM_THREADS": "2",
    }
    monkeypatch.setattr(model, "resolved_openvino_properties", lambda _: chosen)
    return types.SimpleNamespace(server=server, model=model)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 64}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS}))
    return tmp_path


@pytest.fixture
def model(modules: types.SimpleNamespace, folder: Path) -> Any:
    asked = argparse.Namespace(
        model=folder,
        context_tokens=60,
        concurrency=4,
        dtype="bfloat16",
        threads=2,
        kv_cache_precision=None,
    )
    return modules.model.OpenvinoModel(asked)


@pytest.fixture
def pipeline(model: Any) -> Pipeline:
    del model  # it made the last one
    return Pipeline.made[-1]


@pytest.fixture
def port(modules: types.SimpleNamespace, model: Any) -> Iterator[int]:
    running = modules.server.CompletionServer(0, KEY, model)
    threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()

    def serve() -> None:
        with suppress(SystemExit):  # of a test that lets the process end
            modules.server.serve_openvino(model, running.jobs)

    threading.Thread(target=serve, daemon=True).start()
    yield running.server_address[1]
    running.shutdown()
    running.server_close()


def test_the_pipeline_has_room_for_every_request_and_is_told_what_was_asked(
    pipeline: Pipeline, folder: Path
) -> None:
    assert (pipeline.folder, pipeline.device) == (str(folder), "CPU")
    assert pipeline.properties == {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": 2}
    assert (pipeline.scheduler.max_num_seqs, pipeline.scheduler.num_kv_blocks) == (4, 12)
    assert pipeline.scheduler.enable_prefix_caching is False


def test_every_token_is_an_event_and_usage_comes_last(port: int) -> None:
    connection = connect(port)
    for _ in range(2):  # the connection is kept
        status, data = ask(connection, body())
        assert status == 200
        *tokens, finish, usage = events(data)
        assert [event["choices"][0]["token_ids"] for event in tokens] == [
            [500],
            [501],
            [502],
            [503],
        ]
        assert finish["choices"][0]["finish_reason"] == "length"
        assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def test_requests_are_computed_together_and_each_gets_its_own_length(
    port: int, pipeline: Pipeline
) -> None:
    contents = [body(prompt=[n + 1] * (n + 1), max_tokens=10 * n + 10) for n in range(4)]
    answers = ask_together(port, contents, batch=1)
    assert [answer[-1]["usage"]["completion_tokens"] for answer in answers] == [10, 20, 30, 40]
    assert max(pipeline.together) > 1
    for number, answer in enumerate(answers):
        tokens = [event["choices"][0]["token_ids"][0] for event in answer[:-2]]
        assert tokens == [100 * (number + 1) + place for place in range(10 * number + 10)]


def test_an_end_token_does_not_end_a_stream_but_a_whole_answer(port: int, model: Any) -> None:
    model._eos = [501]
    assert events(ask(connect(port), body())[1])[-1]["usage"]["completion_tokens"] == 4
    for ignore, tokens, reason in (
        (False, [500, 501], "stop"),
        (True, [500, 501, 502, 503], "length"),
    ):
        _, data = ask(connect(port), body(stream=False, ignore_eos=ignore))
        (choice,) = json.loads(data)["choices"]
        assert (choice["token_ids"], choice["finish_reason"]) == (tokens, reason)


def test_a_stop_text_ends_a_whole_answer(port: int) -> None:
    _, data = ask(connect(port), body(stream=False, max_tokens=40, stop=["502"]))
    (choice,) = json.loads(data)["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("500 501 ", "stop")
    assert len(choice["token_ids"]) < 40


class Scorer:
    """Gives token t + 1 the largest logit after token t."""

    inputs = tuple(
        types.SimpleNamespace(get_any_name=lambda name=name: name)
        for name in ("input_ids", "beam_idx")
    )

    def create_infer_request(self) -> "Scorer":
        return self

    def infer(self, feeds: dict[str, Any]) -> list[Any]:
        assert sorted(feeds) == ["beam_idx", "input_ids"]
        ids = feeds["input_ids"][0]
        logits = np.zeros((1, len(ids), 10), dtype=np.float32)
        logits[0, np.arange(len(ids)), (ids + 1) % 10] = 3
        return [logits]


def test_a_text_is_scored_with_the_likeliest_tokens_and_its_own(port: int, model: Any) -> None:
    model._scorer = Scorer()
    _, data = ask(
        connect(port), body(stream=False, prompt=[1, 2, 9], max_tokens=1, prompt_logprobs=1)
    )
    (choice,) = json.loads(data)["choices"]
    likely, other = (float(value) for value in np.array([3, 0]) - np.log(9 + np.exp(3)))
    first, second, third = choice["prompt_logprobs"]
    assert first is None
    assert second == {"2": {"logprob": pytest.approx(likely)}}
    assert third == {
        "3": {"logprob": pytest.approx(likely)},
        "9": {"logprob": pytest.approx(other)},
    }
    assert choice["token_ids"] == [0]


def test_the_key_is_asked_for_and_a_request_that_it_cannot_serve_is_refused(port: int) -> None:
    assert ask(connect(port), body(), key="wrong")[0] == 401
    status, data = ask(connect(port), body(max_tokens=62))
    assert (status, "context of 64" in data.decode()) == (400, True)


def test_a_client_that_goes_away_ends_its_request_and_no_other(
    port: int, pipeline: Pipeline
) -> None:
    leaving = connect(port)
    leaving.request(
        "POST",
        "/v1/completions",
        json.dumps(body(prompt=[7], max_tokens=60)),
        {"Authorization": f"Bearer {KEY}"},
    )
    leaving.getresponse()
    leaving.close()
    assert (
        events(ask(connect(port), body(max_tokens=40))[1])[-1]["usage"]["completion_tokens"] == 40
    )
    assert next(handle for handle in pipeline.handles if handle.prompt == [7]).status in (
        "CANCEL",
        "FINISHED",
    )


@pytest.mark.parametrize("error", [None, RuntimeError("it broke")])
def test_an_error_or_an_early_end_is_told_and_ends_the_process(
    error: Exception | None,
    port: int,
    pipeline: Pipeline,
    modules: types.SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exits: list[int] = []
    stopped = threading.Event()

    def end(code: int) -> None:
        exits.append(code)
        stopped.set()
        raise SystemExit

    monkeypatch.setattr(modules.server.os, "_exit", end)
    pipeline.error = error
    if error is None:
        pipeline.ends_after = 2
        with pytest.raises(http.client.IncompleteRead):
            ask(connect(port), body())
    else:
        status, data = ask(connect(port), body())
        assert (status, json.loads(data)["error"]["message"]) == (500, "RuntimeError: it broke")
    assert stopped.wait(10)
    assert exits == [1]


def test_its_facts_are_read_from_its_line(model: Any) -> None:
    facts = read_openvino_facts(f"a warning\nbitbench-facts: {json.dumps(model.facts())}\n")
    assert (facts.engine_version, facts.prefix_caching) == ("2026.4.1.0", False)
    assert (facts.kv_cache_tokens, facts.kv_bytes_per_token, facts.kv_cache_bytes) == (
        384,
        1000,
        384_000,
    )
    assert "computes in f32, KV cache u8" in facts.notes[0]
    assert read_openvino_facts("nothing yet").engine_version is None

"""`bitbench quick` as a person types it: of a server, of variants, and of nothing; on the null engine."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bitbench.endpoint import endpoint_run as endpoint
from bitbench.engines import registry
from bitbench.planning import quick_study
from bitbench.ports import Instance, Launch
from bitbench.quantize import backends
from bitbench.quantize.backends import Maker
from bitbench.records.folder import StudyFolder
from bitbench.study.recipe import Backend
from bitbench.study.workload import Api
from bitbench.util.errors import ExitCode, LoadError
from tests.chain.test_variants import NullEngineWithModel
from tests.command_line import bitbench
from tests.support.null_instance import running
from tests.support.quantize_stand_in import StandIn, pretend_environment, write_model


@pytest.fixture(autouse=True)
def _empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BITBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(endpoint, "PORTS", ())
    # Few tokens, far apart: so trials count on a busy machine too, which stalls processes for a tenth of a second.
    monkeypatch.setattr(endpoint, "ANSWER_TOKENS", 2)
    monkeypatch.setattr(endpoint, "POINT_S", 0.5)
    monkeypatch.setattr(endpoint, "MOST_STREAMS", 4)


def test_nothing_here_is_said_with_what_to_name(capsys: pytest.CaptureFixture[str]) -> None:
    answer = bitbench(capsys, "quick")
    assert answer.exit_code == ExitCode.UNAVAILABLE
    assert "no OpenAI-compatible server answers" in answer.err
    assert "bitbench quick http://HOST:PORT" in answer.err
    assert list(Path().iterdir()) == []


def test_a_server_is_found_and_climbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with running({"ttft": "500ms", "tpot": "300ms"}, tmp_path) as server:
        monkeypatch.setattr(endpoint, "PORTS", (1, int(server.url.rpartition(":")[2])))
        monkeypatch.setenv("OPENAI_API_KEY", server.api_key)
        assert (
            bitbench(capsys, "quick").exit_code == ExitCode.UNAVAILABLE
        )  # not named: it does not get the usual key
        monkeypatch.setenv(endpoint.KEY_VARIABLE, server.api_key)
        answer = bitbench(capsys, "quick", "--into", "first")
    assert answer.exit_code == 0, answer.err
    said = " ".join(answer.out.split())
    assert said.startswith(f"null at {server.url} without load: TTFT 5")
    assert re.search(
        r"tok/s with 4 streams, and still rising\. 1 stream: \S+ tok/s, TTFT 5\d\d ms\.", said
    ), said
    assert re.search(r"Streams tok/s ms 1 \S+ 5\d\d ", said), said
    assert f"bitbench load {server.url} --slo ttft_p99=" in said
    points = StudyFolder.existing(Path("first")).read().study.workloads
    assert [point.concurrency for point in points] == [1, 2, 4]
    assert bitbench(capsys, "report", "first").exit_code == 0


def test_a_server_that_is_named_gets_the_usual_key_and_new_prompts_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(endpoint, "MOST_STREAMS", 1)
    monkeypatch.setattr(endpoint, "TRIALS", 1)
    with running({"ttft": "300ms", "tpot": "300ms"}, tmp_path) as server:
        monkeypatch.setenv("OPENAI_API_KEY", server.api_key)
        for name in ("first", "second"):
            answer = bitbench(capsys, "quick", server.url.removeprefix("http://"), "--into", name)
            assert answer.exit_code == 0, answer.err
    seeds = [StudyFolder.existing(Path(name)).read().study.seed for name in ("first", "second")]
    assert seeds[0] != seeds[1]


def test_a_server_that_takes_no_token_ids_is_asked_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Ollama and LM Studio are."""
    meet = endpoint.first_contact

    def refuse_ids(arguments: Any, workload: Any, load: Any, **more: Any) -> Any:
        if workload.text is None:
            raise LoadError("says 400: prompt must be a string")
        return meet(arguments, workload, load, **more)

    monkeypatch.setattr(endpoint, "first_contact", refuse_ids)
    with running({"ttft": "300ms", "tpot": "300ms"}, tmp_path) as server:
        monkeypatch.setenv("OPENAI_API_KEY", server.api_key)
        answer = bitbench(capsys, "quick", server.url, "--into", "first")
    assert answer.exit_code == 0, answer.err
    points = StudyFolder.existing(Path("first")).read().study.workloads
    assert {point.api for point in points} == {Api.CHAT}
    assert "--api chat --no-ignore-eos --text first/prompts.txt --slo" in " ".join(
        answer.out.split()
    )


class FasterInEightBits(NullEngineWithModel):
    def start(self, launch: Launch) -> Instance:
        times: Mapping[str, str] = {"ttft": "700ms", "tpot": "300ms"}
        if launch.variant.recipe == "w8a8-rtn":
            times = {"ttft": "175ms", "tpot": "75ms"}
        return super().start(
            replace(launch, setup=launch.setup.model_copy(update={"args": dict(times)}))
        )


def test_recipes_of_a_model_are_created_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = {"null": FasterInEightBits()}
    monkeypatch.setattr(registry, "engines", lambda: engines)
    monkeypatch.setattr(registry, "engine", engines.__getitem__)
    monkeypatch.setattr(quick_study, "SPEED_S", 20.0)
    monkeypatch.setattr(quick_study, "SIZES", (quick_study.Size(8, 2, 8),))
    stand_in = StandIn()
    monkeypatch.setitem(
        backends.MAKERS,
        Backend.LLMCOMPRESSOR,
        Maker("quantize", ("llmcompressor",), stand_in.compress),
    )
    pretend_environment(tmp_path / "home")
    write_model(tmp_path / "tiny")
    names = ("tiny", "w8a8-rtn")

    refused = bitbench(capsys, "quick", *names)
    assert refused.exit_code == ExitCode.UNAVAILABLE
    assert re.search(r"variant +w8a8-rtn +about 20 s", refused.out)
    assert "to create it: bitbench quick tiny w8a8-rtn --yes" in refused.err
    assert stand_in.made == 0

    answer = bitbench(capsys, "quick", *names, "--into", "first", "--yes")
    assert answer.exit_code == 0, answer.err
    assert stand_in.made == 1
    said = " ".join(answer.out.split())
    assert "Use w8a8-rtn. Its quality is unknown." in said or "w8a8-rtn" in said
    assert re.search(r"\(95 % CI [0-9.]+× to [0-9.]+×\) the output throughput of bf16", said), said
    assert "to go on: edit first.yaml, then `bitbench run first.yaml --into first`" in said
    again = bitbench(capsys, "run", "first.yaml", "--into", "first")
    assert again.exit_code == 0, again.err

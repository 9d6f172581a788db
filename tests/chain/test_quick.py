"""`bitbench quick`, without a question: of a server on this machine, of installed engines, and of nothing."""

import re
from pathlib import Path

import pytest

from bitbench.engines import registry
from bitbench.engines.endpoint import EndpointArguments
from bitbench.measure import quick
from bitbench.measure.endpoint_check import FirstContact
from bitbench.models.folder import MANIFEST
from bitbench.ports import LoadClient
from bitbench.records.folder import StudyFolder
from bitbench.study.prompts import Api
from bitbench.study.study import Argument
from bitbench.study.workload import Workload
from bitbench.util.errors import LoadError
from bitbench.util.exit_codes import ExitCode
from tests.chain.test_variants import NullEngineWithModel
from tests.command_line import bitbench
from tests.unit.null_instance import running
from tests.unit.quantize_stand_in import write_model


@pytest.fixture(autouse=True)
def _empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BITBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(quick, "PORTS", ())
    # Few tokens, far apart: so trials count on a busy machine too, which stalls processes for a tenth of a second.
    monkeypatch.setattr(quick, "ANSWER_TOKENS", 2)


def test_nothing_here_is_said_with_the_two_commands(capsys: pytest.CaptureFixture[str]) -> None:
    answer = bitbench(capsys, "quick")
    assert answer.exit_code == ExitCode.UNAVAILABLE
    assert "nothing to measure here" in answer.err
    assert answer.err.endswith("bitbench env create transformers && bitbench model get smollm2-135m\n")
    assert list(Path().iterdir()) == []


def test_a_server_is_found_and_measured_with_one_and_with_eight_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(quick, "POINT_S", 0.5)
    with running({"ttft": "500ms", "tpot": "300ms"}, tmp_path) as server:
        monkeypatch.setattr(quick, "PORTS", (1, int(server.url.rpartition(":")[2])))
        monkeypatch.setenv("OPENAI_API_KEY", server.api_key)
        assert quick.find_servers() == ()  # the user has not named it: it does not get the usual key
        monkeypatch.setenv(quick.KEY_VARIABLE, server.api_key)
        answer = bitbench(capsys, "quick", "--into", "first")
    assert answer.exit_code == 0, answer.err
    said = " ".join(answer.out.split())
    one, eight = (re.search(rf"{streams}: TTFT ([0-9.]+) .*?ms", said) for streams in ("1 stream", "8 streams"))
    assert one, answer.out
    assert eight, answer.out
    assert float(one[1]) == pytest.approx(500, rel=0.2)
    assert float(eight[1]) == pytest.approx(500, rel=0.2)
    # An interval that is narrower than the digits shown is left out: on a steady machine that of TTFT is.
    figure = r"\S+( \(\S+ – \S+\))?"
    assert re.search(
        rf"8 streams: TTFT {figure} ms, TPOT {figure} ms, output {figure} tok/s, n = 3 trials, \d+ requests\.", said
    )
    assert bitbench(capsys, "report", "first").exit_code == 0


def test_a_server_that_takes_no_token_ids_is_asked_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Ollama and LM Studio are."""
    meet = quick.first_contact

    def refuse_ids(arguments: EndpointArguments, workload: Workload, load: LoadClient) -> FirstContact:
        if workload.text is None:
            raise LoadError("says 400: prompt must be a string")
        return meet(arguments, workload, load)

    monkeypatch.setattr(quick, "first_contact", refuse_ids)
    monkeypatch.setattr(quick, "POINT_S", 0.5)
    with running({"ttft": "300ms", "tpot": "300ms"}, tmp_path) as server:
        monkeypatch.setattr(quick, "PORTS", (int(server.url.rpartition(":")[2]),))
        monkeypatch.setenv(quick.KEY_VARIABLE, server.api_key)
        answer = bitbench(capsys, "quick", "--into", "first")
    assert answer.exit_code == 0, answer.err
    assert "8 streams: TTFT" in answer.out
    lock = StudyFolder.existing(Path("first")).lock()
    assert lock is not None
    assert {workload.api for workload in lock.plan.study.workloads} == {Api.CHAT}


class Slow(NullEngineWithModel):
    quick_args: dict[str, Argument] = {"ttft": "700ms", "tpot": "300ms"}  # noqa: RUF012


class Fast(NullEngineWithModel):
    quick_args: dict[str, Argument] = {"ttft": "175ms", "tpot": "75ms"}  # noqa: RUF012


def test_the_installed_engines_are_compared_on_the_downloaded_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = {"slow": Slow(), "fast": Fast()}
    monkeypatch.setattr(registry, "engines", lambda: engines)
    monkeypatch.setattr(registry, "engine", engines.__getitem__)
    monkeypatch.setattr(quick, "BUDGET_S", 20.0)
    model = tmp_path / "home" / "models" / "smollm2-135m"
    write_model(model)
    (model / MANIFEST).write_text("{}")
    answer = bitbench(capsys, "quick", "--into", "first")
    assert answer.exit_code == 0, answer.err
    assert "Use bf16 @ fast. " in " ".join(answer.out.split())
    assert re.search(r"\(95 % CI [0-9.]+× to [0-9.]+×\)", " ".join(answer.out.split()))
    study = StudyFolder.existing(Path("first")).lock()
    assert study is not None
    assert study.plan.study.recipes == ("bf16",)


@pytest.mark.parametrize(("latency_s", "one", "eight"), [(0.01, 16, 128), (1.0, 12, 24), (30.0, 2, 8)])
def test_a_slow_server_is_asked_less(latency_s: float, one: int, eight: int) -> None:
    assert (quick.requests_of(1, latency_s), quick.requests_of(8, latency_s)) == (one, eight)

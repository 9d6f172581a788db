"""Servers whose schedule is known: what is measured is what they sent, or unknown, or refused."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bitbench.analysis.objectives import judge_objectives
from bitbench.analysis.trial import compute_trial_metrics
from bitbench.endpoint import endpoint_run as endpoint
from bitbench.endpoint.load_study import find_first_model
from bitbench.loadgen.client import run_job
from bitbench.ports import Endpoint, LoadJob, Vocabulary
from bitbench.records.folder import StudyFolder
from bitbench.records.request_sums import RequestSums
from bitbench.reports.write import StudyReport
from bitbench.study.objective import Objective
from bitbench.study.workload import Workload
from bitbench.util.errors import ExitCode, LoadError
from tests.command_line import bitbench
from tests.known_server import (
    Caches,
    ChatAlone,
    Closes,
    Comments,
    EmptyBefore,
    EmptyChunks,
    HeldBack,
    Http10,
    KnownServer,
    Limited,
    NoUsage,
    OneChunk,
    OtherLimit,
    Prefixed,
    Reasoning,
    Redirects,
    Running,
    Several,
    SlowStart,
    Stalls,
    StopsEarly,
    TwoModels,
    Varied,
    WantsHeader,
    WantsKey,
    known_server,
)

pytestmark = pytest.mark.alone
TOKENS, REQUESTS, STREAMS = 32, 4, 2
TTFT_S, TPOT_SHARE = 0.020, 0.02  # how far a figure may be from the server's own log


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BITBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(
        StudyReport, "write", lambda *_: None
    )  # pages take seconds, and none is looked at


def measured(
    server: Running, *, chat: bool = False, model: str = "m", tokens: int = TOKENS
) -> pa.Table:
    shape: dict[str, object] = {
        "name": "w",
        "concurrency": STREAMS,
        "requests": REQUESTS,
        "arrival": "closed_loop",
    }
    shape |= {"input_tokens": 4, "output_tokens": tokens}
    if chat:
        Path("prompts.txt").write_text("One question?\n\nAnother one?\n")
        shape |= {"api": "chat", "text": {"file": "prompts.txt"}, "output_forced": False}
    job = LoadJob(
        Endpoint(server.url, model, ""),
        Workload.model_validate(shape),
        Vocabulary(1_000),
        (1,),
        20.0,
        10.0,
    )
    rows = run_job(job).requests
    assert rows["status"].to_pylist() == ["ok"] * REQUESTS, rows["error"].to_pylist()
    return rows


def true_times(server: Running) -> tuple[float, float, int]:
    """Mean TTFT and TPOT, and all tokens, of what was sent last."""
    answers = server.sent(REQUESTS)
    firsts = [answer[0][0] for answer in answers]
    later = [sum(count for _, count in answer[1:]) for answer in answers]
    spans = [answer[-1][0] - answer[0][0] for answer in answers]
    tpots = [span / count for span, count in zip(spans, later, strict=True) if count]
    tpot = float(np.mean(tpots)) if tpots else float("nan")
    return float(np.mean(firsts)), tpot, sum(count for answer in answers for _, count in answer)


@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
@pytest.mark.parametrize(
    "variant",
    [KnownServer, EmptyBefore, EmptyChunks, Comments, Several, Varied, Closes, Http10, Caches],
)
def test_times_and_tokens_are_those_that_were_sent(
    variant: type[KnownServer], chat: bool, tmp_path: Path
) -> None:
    with known_server(variant, tmp_path) as server:
        rows = measured(server, chat=chat)
        ttft, tpot, tokens = true_times(server)
    found = compute_trial_metrics(RequestSums.of(rows))
    assert sum(rows["output_tokens"].to_pylist()) == tokens
    assert found.ttft_s == pytest.approx(ttft, abs=TTFT_S)
    assert found.tpot_s == pytest.approx(tpot, rel=TPOT_SHARE)


@pytest.mark.parametrize(
    ("variant", "model"),
    [(ChatAlone, "m"), (Reasoning, "m"), (TwoModels, "fast"), (TwoModels, "slow")],
)
def test_times_of_servers_with_something_of_their_own(
    variant: type[KnownServer], model: str, tmp_path: Path
) -> None:
    with known_server(variant, tmp_path) as server:
        rows = measured(server, chat=issubclass(variant, ChatAlone), model=model, tokens=16)
        ttft, tpot, tokens = true_times(server)
    found = compute_trial_metrics(RequestSums.of(rows))
    assert sum(rows["output_tokens"].to_pylist()) == tokens
    assert found.ttft_s == pytest.approx(ttft, abs=TTFT_S)
    assert found.tpot_s == pytest.approx(tpot, rel=TPOT_SHARE)
    assert (found.first_answer_s is not None) is (variant is Reasoning)


@pytest.mark.parametrize("variant", [OneChunk, HeldBack])
def test_a_time_that_nothing_shows_is_unknown_and_meets_no_objective(
    variant: type[KnownServer], tmp_path: Path
) -> None:
    with known_server(variant, tmp_path) as server:
        rows = measured(server)
        ttft, _, tokens = true_times(server)
    found = compute_trial_metrics(
        RequestSums.of(rows, (Objective(metric="tpot", statistic="p99", limit=5.0),))
    )
    assert sum(rows["output_tokens"].to_pylist()) == tokens
    assert found.ttft_s == pytest.approx(ttft, abs=TTFT_S)
    assert (found.tpot_s, found.tpot_p99_s, found.goodput) == (None, None, None)
    for limit in (0.001, 5.0):
        judged = judge_objectives(
            RequestSums.of(rows, (Objective(metric="tpot", statistic="p99", limit=limit),))
        )
        assert judged is not None
        assert judged.holds is None


def load(capsys: pytest.CaptureFixture[str], server: Running, *options: str) -> tuple[int, str]:
    short = ("--output-tokens", "4", "--requests", "4", "--trials", "1", "--input-tokens", "4")
    answer = bitbench(capsys, "load", server.url, *short, "--into", "out", *options)
    return answer.exit_code, " ".join((answer.out + answer.err).split())


def test_an_objective_on_an_unknown_time_is_inconclusive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with known_server(OneChunk, tmp_path) as server:
        short = ("--output-tokens", "4", "--slo", "tpot_p99=5ms")
        search = bitbench(capsys, "load", server.url, *short)
        assert search.exit_code == ExitCode.INCONCLUSIVE
        assert "tpot_p99=5ms cannot be decided" in " ".join(search.err.split())
        code, _ = load(
            capsys, server, "--concurrency", "1", "--slo", "tpot=5s", "--allow-inconclusive"
        )
    assert code == ExitCode.INCONCLUSIVE


def test_fewer_chunks_than_tokens_and_a_long_gap_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with known_server(Stalls, tmp_path, ttft_s=0.05, tpot_s=0.005) as server:
        more = ("--output-tokens", "64", "--requests", "10", "--concurrency", "1")
        code, said = load(capsys, server, *more)
    assert code == ExitCode.DONE, said
    assert "Fewer chunks than tokens: on c-1 a chunk has 8.0 tokens on average" in said
    assert "Longest gap: an answer on c-1 stood still for 2.0" in said
    (point,) = StudyReport(StudyFolder.existing(Path("out")), tmp_path / "home").summary.points
    assert point.streams is not None
    assert point.streams.longest_gap_s == pytest.approx(2.04, rel=0.05)


def test_a_load_without_a_result_is_in_the_first_sentence_and_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with known_server(Limited, tmp_path, ttft_s=0.3, tpot_s=0.15) as server:
        code, said = load(capsys, server, "--concurrency", "1,4", "--output-tokens", "2")
    assert code == ExitCode.INCONCLUSIVE
    assert "4 in flight (overloaded) has no result; of the other points the most output is" in said


def test_quick_says_that_more_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(endpoint, "ANSWER_TOKENS", 2)
    monkeypatch.setattr(endpoint, "POINT_S", 0.5)
    monkeypatch.setattr(endpoint, "MOST_STREAMS", 4)
    monkeypatch.setattr(endpoint, "TRIALS", 1)
    with known_server(Limited, tmp_path, ttft_s=0.3, tpot_s=0.15) as server:
        answer = bitbench(capsys, "quick", server.url, "--into", "first")
    said = " ".join(answer.out.split())
    assert answer.exit_code == ExitCode.DONE, said
    assert "; 4 streams are refused" in said
    assert "still rising" not in said


@pytest.mark.parametrize(
    ("variant", "said", "unsaid"),
    [
        (SlowStart, "/v1/models says 503: Loading model", "lists no models"),
        (WantsHeader, "/v1/models says 400: header X-Tenant is missing", "lists no models"),
        (
            WantsKey,
            "it wants a key; set the environment variable OPENAI_API_KEY",
            "is the server running",
        ),
        (Redirects, "it redirects to http://", "OPENAI_API_KEY"),
        (Prefixed, "/v1/models says 404: Not Found", "lists no models"),
    ],
)
def test_a_server_without_a_list_of_models_is_quoted_with_advice_by_cause(
    variant: type[KnownServer], said: str, unsaid: str, tmp_path: Path
) -> None:
    with known_server(variant, tmp_path) as server, pytest.raises(LoadError) as refused:
        find_first_model(server.url, "OPENAI_API_KEY")
    assert said in str(refused.value)
    assert unsaid not in str(refused.value)


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        (OtherLimit, "use 'max_completion_tokens' instead"),
        (NoUsage, "the stream ended without usage"),
        (StopsEarly, "Requested 4 output tokens, the engine counted 2"),
    ],
)
def test_answers_that_cannot_be_measured_are_refused(
    variant: type[KnownServer], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with known_server(variant, tmp_path, ttft_s=0.01, tpot_s=0.001) as server:
        code, words = load(capsys, server, "--concurrency", "1")
    assert code == ExitCode.UNAVAILABLE
    assert said in words

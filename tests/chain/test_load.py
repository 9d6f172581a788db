"""`bitbench load` on real null engines: what it finds is known, what is wrong is said, and the key stays secret.
A search for the known capacity is in tests/touched."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

import bitbench
from bitbench.cli.json_answers import make_answer_schema
from bitbench.machine.workplace import get_default_home
from bitbench.ports import Endpoint
from bitbench.records.folder import StudyFolder
from bitbench.records.trial import Outcome
from bitbench.reports.write import StudyReport
from bitbench.running.progress import CLIENT_BOUND_REPEATS
from bitbench.study.study import Argument
from bitbench.util.errors import ExitCode
from tests.forked import bitbench_process
from tests.support.null_instance import running

# Four at once, 30 ms + 7 × 10 ms each: 40 requests/s and not one more.
CAPABLE: dict[str, Argument] = {"ttft": "30ms", "tpot": "10ms", "capacity": 4}
ANSWER = ["--output-tokens", "8"]
# Where trials have to count: times that a busy machine does not change, which stalls processes for a tenth of a second,
# and gaps longer than that, so that a client that reads late has the kernel's times.
STEADY: dict[str, Argument] = {"ttft": "500ms", "tpot": "300ms"}
HALF_AS_FAST: dict[str, Argument] = {"ttft": "1s", "tpot": "600ms"}
SHORT_ANSWER = ["--output-tokens", "2"]


@pytest.fixture
def null(tmp_path: Path) -> Iterator[Endpoint]:
    with running(CAPABLE, tmp_path) as endpoint:
        yield endpoint


def load(
    endpoint: Endpoint, folder: Path, *options: str, key: str | None = None
) -> "subprocess.CompletedProcess[str]":
    variables = {**os.environ, "OPENAI_API_KEY": endpoint.api_key if key is None else key}
    return bitbench_process(
        "load", endpoint.url, *options, cwd=folder, env=variables, timeout_s=540
    )


def load_all(
    endpoint: Endpoint, folder: Path, *options: str, trials: int
) -> "subprocess.CompletedProcess[str]":
    """Until so many trials count: the same command again measures what a busy machine rejected."""
    for _ in range(3):
        done = load(endpoint, folder.parent, *options, "--into", folder.name)
        if sum(trial.counts for trial in StudyFolder(folder).trials()) >= trials:
            break
    return done


def test_a_sweep_fills_a_folder_like_a_studys(tmp_path: Path) -> None:
    asked = ["--concurrency", "1,2", "--requests", "4", "--trials", "2", *SHORT_ANSWER]
    with running(STEADY, tmp_path) as null:
        done = load_all(null, tmp_path / "out", *asked, trials=4)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = StudyFolder.existing(tmp_path / "out")
    summary = StudyReport(folder, get_default_home()).summary
    known = {point.point.workload: point for point in summary.points}
    assert set(known) == {"c-1", "c-2"}
    counted = [trial for trial in folder.trials() if trial.counts]
    assert len(counted) == 4
    assert known["c-1"].metrics["latency_s"].value == pytest.approx(0.8, rel=0.2)
    ElementTree.fromstring((folder.report / "figures" / "load-ttft-c-1.svg").read_text())
    assert "figures/load-ttft-c-1.svg" in (folder.report / "report.md").read_text()
    assert "bitbench did not start this server" in done.stdout
    again = bitbench_process("report", "out", cwd=tmp_path)
    assert again.returncode == 0
    assert "In flight" in again.stdout
    for path in (tmp_path / "out").rglob("*"):
        assert not path.is_file() or null.api_key.encode() not in path.read_bytes(), (
            f"the key is in {path}"
        )
    assert null.api_key not in done.stdout + done.stderr


def test_what_a_busy_machine_rejected_is_measured_by_the_same_command(
    null: Endpoint, tmp_path: Path
) -> None:
    asked = ["--concurrency", "1", "--requests", "4", "--trials", "1", "--into", "out", *ANSWER]
    load(null, tmp_path, *asked)
    folder = StudyFolder.existing(tmp_path / "out")
    late = folder.trials()[-1].model_copy(
        update={"outcome": Outcome.CLIENT_BOUND, "cause": "client too slow"}
    )
    (tmp_path / "out" / "trials.jsonl").write_text("")
    with folder.open_writer() as writer:
        rejected = [writer.append_trial(late, None) for _ in range(CLIENT_BOUND_REPEATS + 1)]
    again = load(null, tmp_path, *asked)
    assert len(folder.trials()) > len(rejected), again.stdout + again.stderr


def test_from_python_with_prompts_of_a_file_beside_a_folder_that_does_not_exist_yet(
    null: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", null.api_key)
    Path("prompts.txt").write_text("One question.\n\nAnother question.\n")
    results = bitbench.load_test(
        null.url, concurrency=[1], requests=4, trials=1, output_tokens=4, text="prompts.txt"
    )
    assert results.path.name.startswith("load-127.0.0.1-")
    (workload,) = results.study.workloads
    assert workload.text is not None
    assert (results.path / workload.text.file).resolve() == tmp_path / "prompts.txt"
    assert results.requests.to_arrow().num_rows == sum(trial.requests for trial in results.trials)


def test_a_study_can_name_an_endpoint(null: Endpoint, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        "name: one\n"
        "engines:\n"
        f"  - {{engine: endpoint, name: there, args: {{url: '{null.url}', model: 'null', api_key_env: NULL_KEY}}}}\n"
        "workloads: [{name: w, concurrency: 2, input_tokens: 16, output_tokens: 8}]\n"
        "objectives: {ttft_p99: 10s}\n"
        "measure: {starts: 2, trials: 2}\n"
    )
    variables = {**os.environ, "NULL_KEY": null.api_key, "BITBENCH_HOME": str(tmp_path / "home")}
    done = bitbench_process(
        "run", "study.yaml", "--into", "out", "--key-from", "NULL_KEY", cwd=tmp_path, env=variables
    )
    # So few requests do not carry a p99, and no gate takes that for a pass.
    assert done.returncode == ExitCode.INCONCLUSIVE, done.stdout + done.stderr
    folder = StudyFolder.existing(tmp_path / "out")
    assert all(
        "bitbench did not start this server" in record.facts.notes[0]
        for record in folder.instances()
    )
    measured = [trial for trial in folder.trials() if trial.kind == "measured"]
    assert len({trial.instance_id for trial in measured}) == 2
    assert {trial.point.config.name for trial in measured} == {"there"}
    assert {trial.outcome for trial in measured} <= {Outcome.OK, Outcome.CLIENT_BOUND}
    for trial in measured:
        assert trial.objectives is not None
        assert trial.objectives.holds
        assert trial.metrics.goodput == trial.metrics.request_throughput


def test_what_is_wrong_is_one_sentence_with_what_to_do(null: Endpoint, tmp_path: Path) -> None:
    wrong_key = load(null, tmp_path, key="sk-wrong-key")
    assert wrong_key.returncode == ExitCode.UNAVAILABLE
    assert "the key was refused; set the environment variable OPENAI_API_KEY" in wrong_key.stderr
    assert "sk-wrong-key" not in wrong_key.stdout + wrong_key.stderr
    other_model = load(null, tmp_path, "--model", "other")
    assert "has no model other; it has null" in other_model.stderr
    nobody = load(Endpoint("http://127.0.0.1:9", "null", "k"), tmp_path)
    assert "is the server running, and is this its port?" in nobody.stderr
    for done in (wrong_key, other_model, nobody):
        assert done.stderr.count("\n") == 1, done.stderr


def test_a_search_that_ended_is_taken_up_by_the_same_command_and_by_no_other(
    tmp_path: Path,
) -> None:
    # Far above what a stall of a busy machine adds: the first trial must hold.
    shared = ["--slo", "ttft_p99=5s", "--duration", "2s", *ANSWER, "--into", "out"]
    asked = ["--max-rate", "4", *shared]
    with running({"ttft": "20ms", "tpot": "1ms"}, tmp_path) as null:
        first = load(null, tmp_path, *asked, "--trials", "1")
        assert first.returncode == ExitCode.DONE, first.stdout + first.stderr
        study = tmp_path / "out" / "study.yaml"
        rate = study.read_text().partition("- name: short-4\n")[2].partition("- name: ")[0]
        tried = f"- name: short-3\n{rate.replace('4.0', '3.0')}objectives:"
        study.write_text(
            study.read_text().replace("objectives:", tried)
        )  # killed before the lock had this rate
        again = load(null, tmp_path, *asked, "--trials", "2")
        assert again.returncode == ExitCode.DONE, again.stdout + again.stderr
        assert "resuming after" in again.stdout
        wider = load(null, tmp_path, "--max-rate", "16", *shared, "--trials", "3")
        assert "short-16" in wider.stdout, wider.stdout  # the limit is that of the command at hand
        for other, said in (
            (
                [*asked, "--output-tokens", "9"],
                "contains a search with other requests (output_tokens); repeat the command",
            ),
            (
                [*asked, "--arrival", "constant"],
                "contains a search with other requests (arrival); repeat the command",
            ),
            (
                [*shared, "--rate", "5"],
                "contains a search of an endpoint, and this is a sweep; repeat the command",
            ),
        ):
            refused = load(null, tmp_path, *other)
            assert refused.returncode == ExitCode.REFUSED
            assert said in refused.stderr
        load(
            null,
            tmp_path,
            "--rate",
            "5",
            "--duration",
            "1s",
            "--trials",
            "1",
            "--into",
            "sweep",
            *ANSWER,
        )
        other_way = load(null, tmp_path, *asked[:-1], "sweep")
        assert (
            "sweep contains a sweep of an endpoint, and this is a search; repeat the command"
            in other_way.stderr
        )


def test_an_objective_below_the_time_without_load_is_said_before_any_search(
    null: Endpoint, tmp_path: Path
) -> None:
    done = load(null, tmp_path, "--slo", "ttft_p99=5ms", "--into", "out", *ANSWER)
    assert done.returncode == ExitCode.FAILED
    assert (
        "ttft_p99=5ms cannot be met at any rate: without load the fastest of 3 requests had a ttft of"
        in done.stderr
    )
    assert not (tmp_path / "out").exists()


def test_an_objective_that_no_rate_meets_fails(tmp_path: Path) -> None:
    """Only the four of the first contact are answered in 60 ms, any other request in 1.2 s."""
    later = ",".join(map(str, range(5, 400)))
    with running(
        {"ttft": "60ms", "tpot": "1ms", "slow_requests": later, "slow_factor": 20}, tmp_path
    ) as null:
        asked = ["--slo", "ttft_p90=600ms", "--duration", "4s", "--trials", "4", "--into", "out"]
        done = load(null, tmp_path, *asked, *ANSWER)
    assert done.returncode == ExitCode.FAILED, done.stdout + done.stderr
    assert "is not met, not even at" in " ".join(done.stdout.split())


def test_a_plan_says_what_a_search_takes_and_sends_no_trial(null: Endpoint, tmp_path: Path) -> None:
    asked = ["--slo", "ttft_p99=5s", "--max-rate", "2", "--plan", "--into", "out", *ANSWER]
    done = load(null, tmp_path, *asked)
    assert done.returncode == ExitCode.DONE, done.stderr
    said = " ".join(done.stdout.split())
    assert "up to 13 trials: 15,300 requests in 2.1 h if the answer is near 2 requests/s" in said
    assert f"bitbench load {null.url} --slo ttft_p95=5s" in said
    assert not (tmp_path / "out").exists()
    assert load(null, tmp_path, *asked, "--json").returncode == ExitCode.USAGE


@pytest.mark.alone
def test_a_sweep_that_misses_an_objective_fails_and_its_answer_is_json(tmp_path: Path) -> None:
    """Of 16 in flight, four are served at once: the others wait for three times 0.8 s."""
    asked = [
        "--concurrency",
        "4,16",
        "--requests",
        "32",
        "--trials",
        "3",
        "--slo",
        "latency_p50=1.4s",
    ]
    with running({**STEADY, "capacity": 4}, tmp_path) as null:
        done = load_all(null, tmp_path / "out", *asked, "--json", *SHORT_ANSWER, trials=6)
    answer = json.loads(done.stdout)
    jsonschema.validate(answer, make_answer_schema("load"))
    verdicts = {
        point["point"]["workload"]: point["objectives"][0]["verdict"]
        for point in answer["answer"]["points"]
    }
    assert verdicts["c-16"] == "missed"
    assert verdicts["c-4"] != "missed"
    assert done.returncode == answer["exit_code"] == ExitCode.FAILED
    assert re.search(r"\bc-(4|16)\b", done.stderr)  # progress


def test_a_twice_slower_endpoint_fails_a_gate_on_its_trials(tmp_path: Path) -> None:
    asked = ["--concurrency", "1", "--requests", "3", "--trials", "3", *SHORT_ANSWER]
    for name, server in (("before", STEADY), ("after", HALF_AS_FAST)):
        with running(server, tmp_path) as endpoint:
            done = load_all(endpoint, tmp_path / name, *asked, trials=3)
        assert done.returncode == 0, done.stdout + done.stderr
    limit = [
        "--fail-if",
        "output_throughput < -3%",
        "--allow",
        "arguments",
    ]  # another port is another argument
    found = bitbench_process("compare", "before", "after", *limit, cwd=tmp_path)
    assert found.returncode == ExitCode.FAILED, found.stdout + found.stderr
    assert "do not cover a restart" in " ".join(found.stdout.split())

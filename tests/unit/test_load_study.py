"""From the options of `bitbench load` to the study that it runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from bitbench.cli.load_study import (
    LoadOptions,
    checked_url,
    endpoint_arguments,
    objectives_of,
    search_limits,
    study_of,
    workloads_of,
)
from bitbench.core.asked.arrival import mean_rate
from bitbench.core.asked.workload import Workload
from bitbench.ground.errors import LoadError
from bitbench.planning.study_file import parse_study
from bitbench.planning.write_study import study_text

OPTIONS = LoadOptions(
    concurrency=None,
    rate=None,
    slo=None,
    input_tokens=128,
    output_tokens=64,
    text=None,
    api="completions",
    arrival="poisson",
    duration=None,
    requests=None,
    trials=None,
    precision="3%",
    max_rate=None,
    output_forced=True,
    seed=0,
)
ARGUMENTS = endpoint_arguments(url="http://127.0.0.1:8000", model="m", api_key_env="K", vocabulary=None)


def points(options: LoadOptions) -> tuple[Workload, ...]:
    return workloads_of(options, Path())


def test_points_are_workloads_in_order() -> None:
    assert [one.name for one in points(OPTIONS)] == ["c-1", "c-2", "c-4", "c-8"]
    assert [one.concurrency for one in points(replace(OPTIONS, concurrency="4,1"))] == [1, 4]
    rates = points(replace(OPTIONS, rate="0.5,2", duration="5s"))
    assert [(one.name, mean_rate(one.arrival), one.duration) for one in rates] == [
        ("rate-0.5", 0.5, 5.0),
        ("rate-2", 2.0, 5.0),
    ]


def test_a_search_starts_at_the_rate_of_one_client_and_its_trials_last_twenty_latencies() -> None:
    options = replace(OPTIONS, slo="ttft_p99=200ms")
    assert options.is_search
    (first,) = workloads_of(options, Path(), latency_s=2.0)
    assert (mean_rate(first.arrival), first.duration) == (0.5, 40.0)
    assert workloads_of(options, Path(), latency_s=0.01)[0].duration == 10.0
    limits = search_limits(options, 0.5)
    assert (limits.lowest, limits.highest, limits.trials, limits.precision) == (0.5 / 16, 2048.0, 12, 0.03)
    assert search_limits(replace(options, max_rate=0.25), 0.5).start == 0.25
    assert not replace(options, rate="1").is_search


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"concurrency": "1", "rate": "1"}, "exclude each other"),
        ({"rate": "fast"}, "--rate: could not convert"),
        ({"rate": "0"}, "--rate: expected numbers such as 1,2,4"),
        ({"rate": "1", "arrival": "gamma"}, "poisson or constant"),
        ({"api": "chat"}, "give --text FILE"),
        ({"api": "responses"}, "completions or chat"),
        ({"duration": "5s"}, "--duration is for rates"),
    ],
)
def test_options_that_do_not_go_together_are_one_sentence(changes: dict[str, str], said: str) -> None:
    with pytest.raises(LoadError, match=said):
        points(replace(OPTIONS, **changes))  # type: ignore[arg-type]


def test_objectives_and_urls_are_checked_in_the_users_words() -> None:
    with pytest.raises(LoadError, match="--slo: there is no objective 'speed'"):
        objectives_of("speed=1s")
    with pytest.raises(LoadError, match="http://host/x: the path /x"):
        checked_url("http://host/x")
    with pytest.raises(LoadError, match="--precision: expected a share"):
        search_limits(replace(OPTIONS, slo="ttft_p99=1s", precision="small"), 1.0)


@pytest.mark.parametrize(
    "changes",
    [{}, {"rate": "1,2", "slo": "ttft_p99=200ms,tpot_mean=12.5ms", "arrival": "constant"}, {"text": Path("a/b.jsonl")}],
)
def test_the_study_file_says_the_same_as_the_study(changes: dict[str, str]) -> None:
    options = replace(OPTIONS, **changes)  # type: ignore[arg-type]
    study = study_of(options, ARGUMENTS, points(options))
    text = study_text(study)
    assert parse_study(text, name="study.yaml") == study
    assert (study.measure.instances.min, study.measure.trials.min) == (1, 3)
    if options.slo:
        assert "objectives: {ttft_p99: 200ms, tpot: 12.5ms}" in text

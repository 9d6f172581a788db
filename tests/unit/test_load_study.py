"""From the options of `bitbench load` to the study that it runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from bitbench.cli.options import parse_counts_option, parse_numbers_option
from bitbench.endpoint.load_study import (
    LoadOptions,
    estimate_search_cost,
    find_first_model,
    make_load_study,
    make_load_study_arguments,
    make_load_study_search_limits,
    make_load_study_workloads,
    offer_p95,
    prepare_load,
)
from bitbench.study.objective import RateTrialKind
from bitbench.study.study_file import format_study, parse_objectives, parse_study
from bitbench.study.workload import Workload, find_mean_rate
from bitbench.util.errors import LoadError, StudyFileError, UsageError
from tests.support.certificate import make_certificate
from tests.support.raw_server import models, send, serving

OPTIONS = LoadOptions()
OBJECTIVES = parse_objectives("ttft_p99=200ms,tpot_mean=12.5ms")
ARGUMENTS = make_load_study_arguments(
    url="http://127.0.0.1:8000", model="m", api_key_env="K", vocabulary=None
)


def points(options: LoadOptions) -> tuple[Workload, ...]:
    return make_load_study_workloads(options)


def test_points_are_workloads_in_order() -> None:
    assert [one.name for one in points(OPTIONS)] == ["c-1", "c-2", "c-4", "c-8"]
    assert [one.concurrency for one in points(replace(OPTIONS, concurrency=(4, 1)))] == [1, 4]
    rates = points(replace(OPTIONS, rate=(2, 0.5), duration="5s"))
    assert [(one.name, find_mean_rate(one.arrival), one.duration) for one in rates] == [
        ("rate-0.5", 0.5, 5.0),
        ("rate-2", 2.0, 5.0),
    ]


def test_a_search_starts_at_the_rate_of_one_client_with_a_trial_of_twenty_latencies() -> None:
    options = replace(OPTIONS, objectives=parse_objectives("ttft_p99=200ms"))
    assert options.is_search
    (first,) = make_load_study_workloads(options, None, latency_s=2.0)
    assert (find_mean_rate(first.arrival), first.requests, first.duration) == (0.5, 20, None)
    assert (
        make_load_study_workloads(options, None, latency_s=0.01)[0].requests == 1000
    )  # ten seconds
    limits = make_load_study_search_limits(options, 2.0)
    assert (limits.lowest, limits.highest, limits.trials, limits.precision) == (
        0.5 / 16,
        2048.0,
        12,
        0.05,
    )
    assert make_load_study_search_limits(replace(options, max_rate=0.25), 2.0).start == 0.25
    assert not replace(options, rate=(1.0,)).is_search


@pytest.mark.parametrize(
    ("slo", "needed"),
    [
        ("ttft_p99=1s", 1000),
        ("ttft_p95=1s,ttft_p50=1s", 200),
        ("tpot=20ms", 200),
        ("ttft=1s,tpot_p99=1s", 1000),
    ],
)
def test_a_full_trial_has_the_requests_of_its_percentile_and_a_verifying_one_three_times_as_many(
    slo: str, needed: int
) -> None:
    options = replace(OPTIONS, objectives=parse_objectives(slo))
    limits = make_load_study_search_limits(options, 0.1)
    assert (
        limits.count_trial_requests(10.0, RateTrialKind.FULL) == needed + 100
    )  # ten seconds for the queue to fill
    assert limits.count_trial_requests(10.0, RateTrialKind.VERIFYING) == 3 * (needed + 100)
    fixed = make_load_study_search_limits(replace(options, duration="6s"), 0.1)
    assert [fixed.count_trial_requests(10.0, kind) for kind in RateTrialKind] == [60, 60, 180]
    counted = make_load_study_search_limits(replace(options, requests=50), 0.1)
    assert [counted.count_trial_requests(10.0, kind) for kind in RateTrialKind] == [50, 50, 150]


def test_a_search_says_what_it_costs_and_offers_a_p95_where_a_p99_takes_long() -> None:
    options = replace(OPTIONS, objectives=parse_objectives("ttft_p99=200ms,tpot_p99=20ms"))
    limits = make_load_study_search_limits(options, 0.5)
    cost = estimate_search_cost(limits, 10.0)
    assert (cost.trials, cost.requests, cost.seconds) == (13, 15 * 1100, 1650.0)
    assert estimate_search_cost(limits, 10.0, done=12).requests == 3300
    study = make_load_study(
        options, make_load_study_arguments(url="http://127.0.0.1:8000", model="m"), points(options)
    )
    assert offer_p95(study, limits, 10.0) is None
    offer = offer_p95(study, limits, 2.0)
    assert offer is not None
    assert "bitbench load http://127.0.0.1:8000 --slo ttft_p95=200ms,tpot_p95=20ms" in offer
    assert offer_p95(study, limits.model_copy(update={"fixed_s": 30.0}), 2.0) is None
    cheap = replace(options, objectives=parse_objectives("ttft_p95=200ms"))
    assert offer_p95(study.model_copy(update={"objectives": cheap.objectives}), limits, 2.0) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"concurrency": (1,), "rate": (1.0,)}, "cannot be combined"),
        ({"rate": (1.0,), "arrival": "bursty"}, "bursty; use poisson or constant"),
        ({"arrival": "bursty"}, "--arrival sets the spacing of requests at a rate; add --rate"),
        ({"api": "chat"}, "give --text FILE"),
        ({"api": "responses"}, "completions or chat"),
        ({"duration": "5s"}, "--duration is for rates"),
        (
            {"rate": (1.0,), "duration": "5s", "requests": 10},
            "--duration and --requests both set the length",
        ),
        ({"rate": (1.0,), "max_rate": 5.0}, "--max-rate limits a search; give --slo"),
        ({"rate": (1.0,), "precision": 0.05}, "--precision ends a search; give --slo"),
    ],
)
def test_options_that_do_not_go_together_are_one_sentence(
    changes: dict[str, object], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        points(replace(OPTIONS, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["a", "1,,b", "0", "-1", "nan", "inf", "", ","])
def test_numbers_that_are_none_are_answered_with_what_is_expected(text: str) -> None:
    with pytest.raises(UsageError, match="--rate: expected numbers such as 1,2,4, got"):
        parse_numbers_option(text, "--rate")


def test_numbers_are_read_once_each_and_counts_are_whole() -> None:
    assert parse_numbers_option("2, 0.5,2", "--rate") == (2.0, 0.5)
    assert parse_counts_option("4,1", "--concurrency") == (4, 1)
    with pytest.raises(UsageError, match="--concurrency: expected whole numbers"):
        parse_counts_option("1.5", "--concurrency")


def test_objectives_and_urls_are_checked_in_the_users_words() -> None:
    with pytest.raises(UsageError, match="--slo: unknown objective 'speed'"):
        parse_objectives("speed=1s")
    with pytest.raises(UsageError, match="http://host/x: the path /x"):
        prepare_load("http://host/x", OPTIONS, NoClient())  # type: ignore[arg-type]


class NoClient:
    """Nothing may be sent."""


def test_a_missing_text_file_is_named_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StudyFileError, match=r"^the texts prompts/none\.txt cannot be read"):
        prepare_load(
            "http://127.0.0.1:9", replace(OPTIONS, text=Path("prompts/none.txt")), NoClient()
        )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rate": (1.0, 2.0), "objectives": OBJECTIVES, "arrival": "constant"},
        {"text": Path("a/b.jsonl")},
    ],
)
def test_the_study_file_says_the_same_as_the_study(changes: dict[str, object]) -> None:
    options = replace(OPTIONS, **changes)  # type: ignore[arg-type]
    study = make_load_study(options, ARGUMENTS, points(options))
    text = format_study(study)
    assert parse_study(text, name="study.yaml") == study
    assert (study.measure.starts.min, study.measure.trials.min) == (1, 3)
    if options.objectives:
        assert "objectives: {ttft_p99: 200ms, tpot: 12.5ms}" in text


def test_a_certificate_that_is_not_trusted_is_no_server_that_is_down(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    with (
        serving(send(models("m")), certificate.server_context()) as server,
        pytest.raises(LoadError) as refused,
    ):
        find_first_model(server.url, "OPENAI_API_KEY")
    assert "SSL_CERT_FILE" in str(refused.value)
    assert "is the server running" not in str(refused.value)

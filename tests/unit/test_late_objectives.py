"""What an uncertain metric says of an objective, and what a run says of a busy machine before it begins."""

import pytest

from bitbench.analysis.objectives import CLIENT_WAS_LATE, check_objectives, judge_objective
from bitbench.analysis.results.estimate import Verdict
from bitbench.analysis.summarize import summarize
from bitbench.machine.host import count_usable_threads
from bitbench.records.trial import ClientHealth, ObjectiveResult, TrialMetrics, TrialRecord
from bitbench.running.runner import describe_busy_machine
from bitbench.study.environment import Device
from bitbench.study.objective import Objective
from bitbench.study.study import EngineSetup
from bitbench.study.workload import Workload
from tests.support.synthetic import make_plan, make_records, make_trial

TTFT, TPOT = (Objective(metric=metric, statistic="mean", limit=0.2) for metric in ("ttft", "tpot"))
PLAN = make_plan(
    ["engine"],
    [Workload(name="w", concurrency=1, input_tokens=8, output_tokens=3)],
    objectives=(TTFT, TPOT),
)
LATE = ClientHealth(send_lateness_p99_s=0.010, loop_lag_p99_s=0.005, cpu_share=0.1)


def trial(
    block: int, index: int, *uncertain: str, holds: bool = True, excess_s: float | None = None
) -> TrialRecord:
    return make_trial(
        PLAN.points[0],
        block,
        index,
        metrics=TrialMetrics(
            output_throughput=100.0 + index, ttft_s=0.1 + index / 1000, tpot_s=0.01 + index / 10000
        ),
        requests=4,
        uncertain=uncertain,
        client=LATE,
        objectives=ObjectiveResult(holds=holds, excess_s=excess_s),
    )


def verdicts(*trials: TrialRecord) -> dict[str, tuple[Verdict, str]]:
    (point,) = summarize(make_records(PLAN, trials)).points
    found = [judge_objective(objective, point) for objective in (TTFT, TPOT)]
    return {finding.name: (finding.verdict, finding.reason) for finding in found}


def test_an_objective_is_met_by_certain_metrics_alone() -> None:
    every = [(block, index) for block in range(3) for index in range(3)]
    certain = verdicts(*(trial(*place) for place in every))
    assert {verdict for verdict, _ in certain.values()} == {Verdict.MET}
    some = verdicts(*(trial(*place, *(("ttft",) if place[1] == 0 else ())) for place in every))
    assert {verdict for verdict, _ in some.values()} == {Verdict.MET}
    none = verdicts(*(trial(*place, "ttft") for place in every))
    assert none["ttft"] == (Verdict.INCONCLUSIVE, CLIENT_WAS_LATE)
    assert none["tpot"][0] is Verdict.MET


@pytest.mark.parametrize(
    ("uncertain", "holds", "excess_s", "said"),
    [
        ((), False, 0.001, False),
        (("itl",), False, 0.001, False),  # of no objective here
        (("ttft",), False, 0.001, None),  # the client was late by more
        (("ttft",), False, 0.100, False),
    ],
)
def test_a_miss_by_less_than_the_client_was_late_decides_nothing(
    uncertain: tuple[str, ...], holds: bool, excess_s: float, said: bool | None
) -> None:
    assert (
        check_objectives(trial(0, 0, *uncertain, holds=holds, excess_s=excess_s), (TTFT,)) is said
    )


@pytest.mark.parametrize(
    ("engine", "device", "share", "are_rejected"),
    [
        ("llamacpp", "cpu", 0.5, True),
        ("llamacpp", "cpu", 0.1, False),
        ("llamacpp", "cuda", 0.5, False),  # it computes elsewhere
        ("null", "cpu", 0.5, False),  # it computes nothing
    ],
)
def test_a_run_says_beforehand_that_other_work_gets_its_trials_rejected(
    engine: str, device: Device, share: float, are_rejected: bool
) -> None:
    study = PLAN.study.model_copy(update={"engines": (EngineSetup(engine=engine),)})
    said = describe_busy_machine(study, device, share * count_usable_threads())
    assert ("rejected" in said) == are_rejected
    assert ("wide intervals" in said) != are_rejected

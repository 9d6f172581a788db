"""Equal configs on machines whose speeds differ by 30 %: whole blocks on a machine claim nothing, a naive spread
does."""

import numpy as np
import pytest

from bitbench.features.fleet.computing import summarize_fleet_speeds
from bitbench.records.trial import InstanceRecord, TrialMetrics, TrialRecord
from bitbench.reports.document.markdown import markdown
from bitbench.reports.study import study_document
from bitbench.study.study import Count, Measure
from bitbench.study.workload import BUILT_IN_WORKLOADS
from tests.unit.synthetic import make_instance, make_plan, make_records, make_trial, summarize

STUDIES = 100
BLOCKS, TRIALS = 6, 3
SPEED = {"slow": 1.0, "fast": 1.3}
WORKLOAD = BUILT_IN_WORKLOADS["interactive"]
PLAN = make_plan(["a", "b"], [WORKLOAD], Measure(starts=Count(min=BLOCKS, max=BLOCKS), trials=Count(min=3, max=3)))
MOST_FALSE = 0.05 + 2 * (0.05 * 0.95 / STUDIES) ** 0.5


def machine_of(block: int, config: int, *, naive: bool) -> str:
    """A scheduler that knows only jobs puts a config where its model is already."""
    return ("slow", "fast")[(config if naive else block) % 2]


def study(seed: int, *, naive: bool) -> tuple[list[TrialRecord], list[InstanceRecord]]:
    rng = np.random.default_rng(seed)
    trials: list[TrialRecord] = []
    instances: list[InstanceRecord] = []
    for block in range(BLOCKS):
        for number, point in enumerate(PLAN.points):
            host = machine_of(block, number, naive=naive)
            instances.append(make_instance(point.config, block, host=host))
            start = 100 * SPEED[host] * float(np.exp(0.02 * rng.normal()))
            for index in range(TRIALS):
                figure = TrialMetrics(output_throughput=start * float(np.exp(0.03 * rng.normal())))
                trials.append(make_trial(point, block, index, metrics=figure))
    return trials, instances


def share_of_claims(*, naive: bool) -> float:
    claims = 0
    for seed in range(STUDIES):
        (ranking,) = summarize(PLAN, *study(seed, naive=naive)).rankings
        claims += any(not entry.undecided_with for entry in ranking.entries)
    return claims / STUDIES


def test_whole_blocks_on_a_machine_claim_nothing_false() -> None:
    assert share_of_claims(naive=False) <= MOST_FALSE


def test_a_naive_spread_claims_what_is_the_machines() -> None:
    assert share_of_claims(naive=True) > 0.9


def test_the_machine_is_a_factor_of_the_report() -> None:
    trials, instances = study(1, naive=False)
    found = summarize_fleet_speeds(make_records(PLAN, trials, instances))
    assert found is not None
    slow, fast = sorted(found.machines, key=lambda one: one.speed)
    assert (slow.name, fast.name) == ("slow", "fast")
    assert fast.speed / slow.speed == pytest.approx(1.3, rel=0.05)
    assert (slow.blocks, slow.trials) == (BLOCKS // 2, BLOCKS // 2 * TRIALS * 2)
    assert found.share is not None
    assert found.share > 0.9
    records = make_records(PLAN, trials, instances)
    text = markdown(study_document(summarize(PLAN, trials, instances), records.lock, instances=instances))
    assert "## Machines" in text
    assert "between machines" in text


def test_a_machine_that_is_ten_times_too_fast_is_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be: what it says fits together and takes no longer than it can have taken."""
    assert "reports" not in machines_text()
    monkeypatch.setitem(SPEED, "fast", 10.0)
    text = machines_text()
    assert "**`fast` reports 9." in text
    assert "check both" in text


def machines_text() -> str:
    trials, instances = study(1, naive=False)
    records = make_records(PLAN, trials, instances)
    text = markdown(study_document(summarize(PLAN, trials, instances), records.lock, instances=instances))
    return text.split("## Machines")[1].split("\n## ")[0]


def test_one_machine_is_no_factor() -> None:
    trials, instances = study(1, naive=False)
    alone = [instance.model_copy(update={"host": "slow"}) for instance in instances]
    assert summarize_fleet_speeds(make_records(PLAN, trials, alone)) is None
    unknown = [instance.model_copy(update={"host": None}) for instance in instances]
    assert summarize_fleet_speeds(make_records(PLAN, trials, unknown)) is None


def test_equal_machines_have_no_share() -> None:
    trials, instances = study(1, naive=False)
    mixed = [instance.model_copy(update={"host": f"m{instance.block // 3}"}) for instance in instances]
    found = summarize_fleet_speeds(make_records(PLAN, trials, mixed))
    assert found is not None
    assert found.share is not None
    assert found.share < 0.5

"""What a command prints when its study has ended."""

from bitbench.cli.outcome import advice
from bitbench.core.asked.objective import Objective
from bitbench.core.asked.search import SearchLimits
from bitbench.core.asked.workload import BUILT_IN_WORKLOADS
from bitbench.core.recorded.trial import ObjectiveResult, Outcome, TrialRecord
from tests.unit.synthetic import LOCK, make_plan, make_records, make_trial

OBJECTIVE = Objective(metric="ttft", statistic="p99", limit=0.2)
PLAN = make_plan(["engine"], [BUILT_IN_WORKLOADS["interactive"]], objectives=(OBJECTIVE,))


def trials(*outcomes: Outcome) -> list[TrialRecord]:
    met = ObjectiveResult(holds=True)
    return [make_trial(PLAN.cells[0], 0, i, outcome=outcome, objectives=met) for i, outcome in enumerate(outcomes)]


def test_rejected_trials_are_counted_once_with_what_to_do() -> None:
    late = trials(Outcome.CLIENT_BOUND, Outcome.OK, Outcome.CLIENT_BOUND)
    assert advice(make_records(PLAN, late)) == (
        "2 of 3 trials were rejected because this machine was busy. Free a core, or lower the concurrency."
    )
    assert advice(make_records(PLAN, trials(Outcome.OK, Outcome.CRASHED))) is None


def test_a_search_keeps_a_trial_that_met_its_objectives_although_the_client_was_slow() -> None:
    late = trials(Outcome.CLIENT_BOUND, Outcome.OK)
    limits = SearchLimits(start=1.0, lowest=0.1, highest=8.0)
    assert advice(make_records(PLAN, late, lock={**LOCK, "search": limits})) is None

"""What a command prints when its study has ended."""

from typing import Any

import pytest
import typer

from bitbench.cli.options import Format
from bitbench.cli.outcome import end_with_outcome_document, find_outcome_advice
from bitbench.cli.terminal import Terminal
from bitbench.records.trial import ObjectiveResult, Outcome, TrialRecord
from bitbench.reports.document.markdown import render_markdown
from bitbench.reports.document.model import Document
from bitbench.reports.document.terminal import render_whole_in_terminal
from bitbench.reports.document.words import paragraph, say
from bitbench.study.objective import Objective, SearchLimits
from bitbench.study.workload import BUILT_IN_WORKLOADS
from bitbench.util.errors import ExitCode
from tests.support.synthetic import LOCK, make_plan, make_records, make_trial

OBJECTIVE = Objective(metric="ttft", statistic="p99", limit=0.2)
PLAN = make_plan(["engine"], [BUILT_IN_WORKLOADS["interactive"]], objectives=(OBJECTIVE,))


def trials(*outcomes: Outcome) -> list[TrialRecord]:
    met = ObjectiveResult(holds=True)
    return [
        make_trial(PLAN.points[0], 0, i, outcome=outcome, objectives=met)
        for i, outcome in enumerate(outcomes)
    ]


def test_rejected_trials_are_counted_once_with_what_to_do() -> None:
    late = trials(Outcome.CLIENT_BOUND, Outcome.CLIENT_BOUND, Outcome.OK)
    assert find_outcome_advice(make_records(PLAN, late)) == (
        "2 of 3 trials did not count: the client had to wait for a core. "
        "Nothing is missing: what they should show was measured again."
    )
    given_up = trials(Outcome.OK, Outcome.CLIENT_BOUND, Outcome.CLIENT_BOUND)
    assert find_outcome_advice(make_records(PLAN, given_up)) == (
        "2 of 3 trials did not count: the client had to wait for a core. "
        "Free a core, then measure again with the same command; or lower the concurrency."
    )
    assert find_outcome_advice(make_records(PLAN, trials(Outcome.OK, Outcome.CRASHED))) is None


def test_a_search_keeps_a_trial_that_met_its_objectives_although_the_client_was_slow() -> None:
    late = trials(Outcome.CLIENT_BOUND, Outcome.OK)
    limits = SearchLimits(start=1.0, lowest=0.1, highest=8.0)
    assert find_outcome_advice(make_records(PLAN, late, lock={**LOCK, "search": limits})) is None


def test_an_answer_is_a_page_or_fills_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    document = Document(say("Title"), (paragraph("Use this."),), ())

    def shown(form: Format, **options: Any) -> str:
        with pytest.raises(typer.Exit) as end:
            end_with_outcome_document(document, Terminal(), ExitCode.INCONCLUSIVE, form, **options)
        assert end.value.exit_code == ExitCode.INCONCLUSIVE
        return capsys.readouterr().out

    said = f"exit code 2: {ExitCode.INCONCLUSIVE.meaning}"
    assert shown(Format.TEXT).split("\n") == ["", "Use this.", ""]
    assert shown(Format.TEXT, draw=render_whole_in_terminal).split("\n") == [
        "Title",
        "Use this.",
        "",
    ]
    assert " ".join(shown(Format.TEXT, says_exit_code=True).split()) == f"Use this. {said}"
    assert shown(Format.MARKDOWN, says_exit_code=True) == render_markdown(document)

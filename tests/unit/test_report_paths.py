"""No machine's own paths in a report that is passed on."""

from pathlib import Path

import pytest

from bitbench.records.trial import Outcome
from bitbench.reports.write import make_path_shortener, strip_report_paths
from bitbench.study.workload import BUILT_IN_WORKLOADS
from tests.support.synthetic import make_plan, make_trial, summarize

SHORT = make_path_shortener([Path("/data/home"), Path("/data/home/study"), Path("/")])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('File "/data/home/envs/vllm/x.py", line 3', 'File "…/envs/vllm/x.py", line 3'),
        ("/data/home/study/logs/i0001.log", "…/logs/i0001.log"),
        ("--model=/data/home/models/a --x", "--model=…/models/a --x"),
        ("/data/home", "…"),
        ("/data/homely/x and /other/data/home", "/data/homely/x and /other/data/home"),
        ("no path", "no path"),
    ],
)
def test_what_lies_in_a_known_folder_is_shortened(text: str, shown: str) -> None:
    assert SHORT(text) == shown


def test_failures_and_their_log_lines() -> None:
    plan = make_plan(["a"], [BUILT_IN_WORKLOADS["base"]])
    bad = make_trial(
        plan.points[0],
        0,
        0,
        outcome=Outcome.CRASHED,
        cause="no /data/home/x",
        log_lines=("at /data/home/y.py",),
    )
    failure = strip_report_paths(summarize(plan, [bad], []), SHORT).points[0].failures[0].failure
    assert failure.cause == "no …/x"
    assert failure.log_lines == ("at …/y.py",)

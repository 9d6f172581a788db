"""For all tests: properties are about results, not about how long a busy machine takes for an example.

What each test takes is written down and read again: the files that take longest begin first, so that no core waits for
the last one.
"""

import json
import os
import resource
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import forked
from tests.durations import Took, kept

settings.register_profile("bitbench", deadline=None)
settings.load_profile("bitbench")

IS_WRITTEN = "BITBENCH_DURATIONS" in os.environ
WRITTEN = Path(
    os.environ.get("BITBENCH_DURATIONS", "")
).absolute()  # a line for each test, below those of earlier runs
BESIDE = (
    "tests/unit/",
    "tests/features/",
    "tests/chain/",
)  # on all cores, but for what has the mark `alone` itself
USED_S = pytest.StashKey[float]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first. Engines take all cores."""
    took = kept()
    for item in items:
        if not item.location[0].startswith(BESIDE):
            item.add_marker(pytest.mark.alone)
    items.sort(key=lambda item: -took.get(item.location[0], Took(0.0, 0.0)).wall_s)


def pytest_collection_finish(session: pytest.Session) -> None:
    session.stash[USED_S] = processor_s()


def processor_s() -> float:
    """Of this process, its children that have ended, and the server that forks some of them."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used) + forked.processor_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fixtures are of the test that they are made for first, the end of shared ones of the last."""
    report = yield
    before_s, now_s = item.session.stash[USED_S], processor_s()
    item.session.stash[USED_S] = now_s
    report.user_properties.append(("cpu_s", now_s - before_s))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if (
        IS_WRITTEN and "PYTEST_XDIST_WORKER" not in os.environ
    ):  # of several processes the one that hears of all
        cpu_s = dict(report.user_properties).get("cpu_s", 0.0)  # a worker that died says nothing
        with WRITTEN.open("a", encoding="utf-8") as file:
            took = round(report.duration, 3), round(float(cpu_s), 3)
            file.write(json.dumps([report.nodeid, report.when, *took]) + "\n")

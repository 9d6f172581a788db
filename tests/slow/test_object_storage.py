"""An object store for long: a hundred kills of drivers, a thousand of writers, queries over a thousand studies."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bitbench.store.catalog import compact
from bitbench.store.objects import ObjectStore
from bitbench.store.query import Studies
from tests.chain.test_object_storage import kill_drivers
from tests.killed_writers import kill_writers
from tests.many_studies import ALL_TRIALS, ROWS_EACH, write_studies
from tests.unit.object_servers import BUCKET, serving, why_not

pytestmark = [
    pytest.mark.skipif(why_not("seaweedfs") is not None, reason=why_not("seaweedfs") or ""),
    pytest.mark.timeout(7200),
]
QUERY_S = 1.0


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    with serving("seaweedfs", tmp_path) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield variables


def test_a_hundred_killed_drivers(server: dict[str, str], tmp_path: Path) -> None:
    studies = kill_drivers(f"s3://{BUCKET}/drivers", tmp_path, 100, random.Random(100))
    print(f"100 kills, {studies} complete studies")


def test_a_thousand_killed_writers(server: dict[str, str], tmp_path: Path) -> None:
    studies = kill_writers(f"s3://{BUCKET}/writers", tmp_path, server, 1000, random.Random(1000))
    print(f"1000 kills, {studies} complete studies")


def test_a_thousand_studies_are_queried_in_a_second(server: dict[str, str]) -> None:
    place = f"s3://{BUCKET}/many"
    write_studies(ObjectStore(place), 1000)
    compact(ObjectStore(place))
    took = []
    for _ in range(3):
        began = time.perf_counter()
        assert Studies(place).query(ALL_TRIALS)[1] == [(1000, 1000 * ROWS_EACH)]
        took.append(time.perf_counter() - began)
    print(f"1,000 studies: {', '.join(f'{one:.2f} s' for one in took)}")
    assert min(took) < QUERY_S

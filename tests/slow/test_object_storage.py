"""A thousand studies in an object store are queried in a second."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bitbench.features.objects.remote_folder import compact_remote_tables
from bitbench.features.objects.store import ObjectStore
from bitbench.features.query.studies import Studies
from tests.features.objects.many_studies import ALL_TRIALS, ROWS_EACH, write_studies
from tests.features.objects.object_servers import BUCKET, serving, why_not

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


def test_a_thousand_studies_are_queried_in_a_second(server: dict[str, str]) -> None:
    place = f"s3://{BUCKET}/many"
    write_studies(ObjectStore(place), 1000)
    compact_remote_tables(ObjectStore(place))
    took = []
    for _ in range(3):
        began = time.perf_counter()
        assert Studies(place).query(ALL_TRIALS)[1] == [(1000, 1000 * ROWS_EACH)]
        took.append(time.perf_counter() - began)
    print(f"1,000 studies: {', '.join(f'{one:.2f} s' for one in took)}")
    assert min(took) < QUERY_S

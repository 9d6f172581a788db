"""kill -9 at two hundred moments of studies with 108 trials each: see `tests.chain.test_kill`."""

import random
from pathlib import Path

import pytest

from tests.chain.test_kill import kill_until

pytestmark = pytest.mark.shares

PARTS = 4
KILLS = 50  # of a part


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", range(PARTS))
def test_fifty_kills(number: int, tmp_path: Path) -> None:
    studies = kill_until(tmp_path, KILLS, random.Random(200 + number))
    print(f"{KILLS} kills, {studies} complete studies")

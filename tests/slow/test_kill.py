"""kill -9 at two hundred moments of studies with 108 trials each: see `tests.chain.test_kill`."""

import random
from pathlib import Path

import pytest

from tests.chain.test_kill import kill_until

KILLS = 200


@pytest.mark.timeout(7200)
def test_two_hundred_kills(tmp_path: Path) -> None:
    studies = kill_until(tmp_path, KILLS, random.Random(200))
    print(f"{KILLS} kills, {studies} complete studies")

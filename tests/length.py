"""How long a test goes on: one claim, of which `scripts/test` tries some cases and `scripts/test --all` many."""

import os
from typing import TypeVar

IS_LONG = os.environ.get("BITBENCH_TEST_LENGTH") == "long"
T = TypeVar("T")


def by_length(short: T, long: T) -> T:
    return long if IS_LONG else short

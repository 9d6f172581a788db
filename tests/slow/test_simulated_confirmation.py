"""The simulated studies of tests/unit/test_confirmation.py, ten times as many."""

import pytest

from tests.unit.confirmed_studies import assert_unbiased

pytestmark = pytest.mark.shares


def test_the_choice_looks_better_than_it_is_and_the_confirmation_does_not() -> None:
    assert_unbiased(1200)

"""The gate through the command line, on folders: a small version of tests/slow/test_compare_truth.py."""

from pathlib import Path

import pytest

from tests.study_pairs import exit_code, write_folder
from tests.unit.test_compare import SLOWER_BY_3, side
from tests.unit.test_compare_honesty import FOUR_STARTS

PAIRS = 20


@pytest.mark.parametrize(
    ("truth", "limit", "expected"),
    [(1.0, "output_throughput < 0%", range(3)), (0.9, SLOWER_BY_3, range(19, 21))],
)
def test_how_often_the_command_fails(
    truth: float, limit: str, expected: range, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = []
    for number in range(PAIRS):
        before = write_folder(
            tmp_path / f"a{number}", side("a", 1.0, 2 * number, measure=FOUR_STARTS)
        )
        after = write_folder(
            tmp_path / f"b{number}", side("b", truth, 2 * number + 1, measure=FOUR_STARTS)
        )
        codes.append(exit_code(capsys, before, after, limit))
    assert codes.count(1) in expected

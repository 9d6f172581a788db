"""The store and the scheduler under crashes and torn writes: nothing is lost, nothing is doubled.

And the simulation itself: what it is there for, it finds.
"""

import re
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from bitbench.records.folder import Writer
from bitbench.running.progress import Progress
from bitbench.study.plan import Member
from bitbench.util.errors import StoreError
from tests.length import by_length
from tests.support.store_simulation import KINDS, STEPS, explore, walk, walk_one

EXAMPLES = 60
FEWEST_EXPLORED = 1_500  # steps; of the 3,600 that the examples may have
WALKED = by_length(4_000, 50_000)
SEED = 1
SEEDS = range(SEED, SEED + by_length(1, 20))


def test_steps_that_hypothesis_chooses() -> None:
    steps = explore(SEED, EXAMPLES)
    print(f"{steps:,} steps")
    assert steps >= FEWEST_EXPLORED


@pytest.mark.parametrize("seed", SEEDS)
def test_a_walk(seed: int) -> None:
    counts = walk(seed, WALKED)
    print(dict(counts))
    assert counts["steps"] >= WALKED
    assert all(counts[kind] > 0.05 * WALKED for kind in KINDS)
    assert counts["completed"] > 0.25 * counts["studies"]


def nothing(*_: object) -> None:
    pass


def numbered_by_lines(writer: Writer) -> tuple[str, Path]:
    """An id is given again where an instance died before its line."""
    path = writer.folder.logs / f"i{1 + len(writer.folder.instances()):04d}.log"
    path.touch()
    return path.stem, path


MEMBERS = Progress._members
ASKED: set[tuple[int, int]] = set()


def asked_once(progress: Progress, block: int) -> list[Member]:
    """What is next depends on what was asked before."""
    asked = (id(progress), block)
    members = [] if asked in ASKED else MEMBERS(progress, block)
    ASKED.add(asked)
    return members


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        ("bitbench.records.folder.Writer._cut_torn_line", nothing),
        ("bitbench.records.folder.Writer._drop_orphans", nothing),
        ("bitbench.records.folder.Writer.new_instance", numbered_by_lines),
        ("bitbench.records.folder.parse_next_record_number", lambda _: 1),
        ("bitbench.running.progress.Progress._members", asked_once),
    ],
)
def test_a_fault_is_found_and_its_study_can_be_repeated_alone(
    place: str, fault: Callable[..., object]
) -> None:
    with patch(place, fault):
        with pytest.raises((AssertionError, StoreError)) as found:
            walk(SEED, 20 * STEPS)
        (note,) = found.value.__notes__
        number, study = re.findall(r"walk_one\((\d+), (\d+)\)", note)[0]
        with pytest.raises(type(found.value)) as repeated:
            walk_one(int(number), int(study))
        assert repeated.value.__notes__ == [note]
    walk_one(int(number), int(study))  # without the fault

"""In a stranger's folder nothing outside changes and nothing hangs: each path with one kind of trap, in turn; in the
long form with all kinds."""

from itertools import product
from pathlib import Path

import pytest

from tests.length import by_length
from tests.stranger_commands import COMMANDS
from tests.strangers import KINDS, Command, harms, paths_written


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_trap_at_every_path(command: Command, tmp_path: Path) -> None:
    paths = paths_written(command, tmp_path / "clean")
    assert paths, "it wrote nothing, so nothing is tried"
    in_turn = [(path, KINDS[number % len(KINDS)]) for number, path in enumerate(paths)]
    assert harms(command, tmp_path, by_length(in_turn, [*product(paths, KINDS)])) == {}

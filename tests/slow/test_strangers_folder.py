"""In a stranger's folder nothing outside changes and nothing hangs: all kinds of traps at all paths of all commands."""

from itertools import product
from pathlib import Path

import pytest

from tests.stranger_commands import COMMANDS
from tests.strangers import KINDS, Command, harms, paths_written


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_trap_at_every_path(command: Command, tmp_path: Path) -> None:
    paths = paths_written(command, tmp_path / "clean")
    traps = list(product(paths, KINDS))
    print(f"{command.name}: {len(paths)} paths x {len(KINDS)} kinds = {len(traps)}")  # with -s: what was tried
    assert harms(command, tmp_path, traps) == {}

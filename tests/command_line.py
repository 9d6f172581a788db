"""The command line in this process, so that a test can put stand-ins behind it."""

import sys
from dataclasses import dataclass
from unittest.mock import patch

import pytest

from bitbench.cli import main


@dataclass(frozen=True)
class Answer:
    exit_code: int
    out: str
    err: str


def bitbench(capsys: pytest.CaptureFixture[str], *arguments: str) -> Answer:
    """What `bitbench ARGUMENTS` says, and its exit code."""
    capsys.readouterr()
    with patch.object(sys, "argv", ["bitbench", *arguments]), pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    code = ended.value.code
    return Answer(code if isinstance(code, int) else 0, said.out, said.err)

"""How a command ended, as a number: one table for all commands.

Below 64 the command did its work, and the number is the answer of a gate. From 64 on there is no answer: the numbers
are those of `sysexits.h`, so that a regression is never mistaken for a typing error.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    DONE = 0
    FAILED = 1
    INCONCLUSIVE = 2
    NOTHING_MEASURED = 3
    USAGE = 64
    REFUSED = 65
    UNAVAILABLE = 69
    DEFECT = 70
    NOT_ALLOWED = 77
    STOPPED = 130
    PIPE_CLOSED = 141

    @property
    def meaning(self) -> str:
        """The row of docs/scripting.md."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.DONE: "done; every limit and objective that was given is met with confidence",
    ExitCode.FAILED: "a limit or objective is missed with confidence, no config meets them, or a checkpoint is broken",
    ExitCode.INCONCLUSIVE: "inconclusive: the records do not decide about a limit or an objective",
    ExitCode.NOTHING_MEASURED: "nothing was measured: every point failed or was refused",
    ExitCode.USAGE: "the command line or a file that a person wrote asks for something that does not exist",
    ExitCode.REFUSED: "a given folder or file cannot be read or written, or two cannot be compared",
    ExitCode.UNAVAILABLE: "what is needed is missing or failed: an environment, a model, an endpoint, this machine",
    ExitCode.DEFECT: "a defect of bitbench",
    ExitCode.NOT_ALLOWED: "a study file uses something that has not been allowed on this machine",
    ExitCode.STOPPED: "stopped with Ctrl-C; finished trials are kept",
    ExitCode.PIPE_CLOSED: "the program that reads the output closed it",
}

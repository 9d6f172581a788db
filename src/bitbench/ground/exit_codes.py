"""How a command ended, as a number: one table for all commands.

Below 64 the command did its work, and the number is the answer of a gate. From 64 on there is no answer: the numbers
are those of `sysexits.h`, so that a regression is never mistaken for a typing error.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """`meaning` is the row of docs/exit-codes.md."""

    meaning: str

    DONE = 0, "done; every limit and objective that was given is met with confidence"
    FAILED = 1, "a limit is exceeded or an objective missed with confidence, or no contender meets the limits"
    INCONCLUSIVE = 2, "inconclusive: the records do not decide about a limit or an objective"
    NOTHING_MEASURED = 3, "nothing was measured: every cell failed or was refused"
    USAGE = 64, "the command line or a file that a person wrote asks for something that does not exist"
    REFUSED = 65, "the given folders or files cannot be read, or cannot be compared"
    UNAVAILABLE = 69, "something that is needed is missing or failed: an environment, a model, an endpoint, a worker"
    DEFECT = 70, "a defect of bitbench"
    STOPPED = 130, "stopped with Ctrl-C; finished trials are kept"
    PIPE_CLOSED = 141, "the program that reads the output closed it"

    def __new__(cls, number: int, meaning: str) -> "ExitCode":
        code = int.__new__(cls, number)
        code._value_ = number
        code.meaning = meaning
        return code

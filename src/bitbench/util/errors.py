"""Errors for users, and the exit codes of all commands.

Below 64 the command did its work, and the code is the answer of a gate. From 64 on it gave no
answer. Those codes come from `sysexits.h`, so that a regression is never mistaken for a typing
error.

BitbenchError               one sentence: what went wrong, where, and what to do next
├── UsageError              an option has a value that cannot be used, or names something missing
├── StudyFileError          the study file contains something that cannot be run
├── EngineEnvironmentError  an engine's environment is missing, broken or could not be created
├── PluginError             a package that adds to bitbench cannot be loaded
├── NotReadyError           a study needs environments or models that are not installed here
├── PlatformError           measuring needs Linux, and this is another system
├── ModelError              a model is missing, unreadable or could not be downloaded
├── RecipeError             a recipe is invalid or does not exist
├── QuantizeError           a variant could not be created, or may not be removed
├── KernelError             a kernel case or shape is invalid, or the worker that times it failed
├── QualityError            quality cannot be measured as the study asks, so it stays unknown
├── BusyMachineError        every trial was rejected, because of other work or a late client
├── LoadError               the load generator itself failed, not the engine
├── ProfileError            an operator profile could not be taken, or its trace not be read
├── StoreError              a study folder cannot be read or written as it is
│   └── RowsNotKeptError    the rows of a record are missing, but other results are complete
├── FleetError              no node of a cluster can work on a study, or the cluster is unusable
├── NotComparableError      two things differ in a fact that would make the comparison wrong
├── CannotExplainError      `bitbench explain` needs something that was not measured
├── CannotCompareError      two studies have nothing in common, or differ in a fact not allowed
├── UndecidedError          an objective is about a time that the server's answers do not show
└── UnreachableError        an objective cannot be met, because even an idle endpoint takes longer

A point that fails is not an error but a result (see `records.trial.Outcome`).
"""

from enum import IntEnum
from pathlib import Path


class ExitCode(IntEnum):
    """The exit code of a command."""

    DONE = 0
    FAILED = 1
    INCONCLUSIVE = 2
    NOTHING_MEASURED = 3
    USAGE = 64
    REFUSED = 65
    UNAVAILABLE = 69
    DEFECT = 70
    STOPPED = 130
    PIPE_CLOSED = 141

    @property
    def meaning(self) -> str:
        """Return the explanation in docs/scripting.md."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.DONE: "done; every limit and objective that was given is met with confidence",
    ExitCode.FAILED: (
        "a limit or objective is missed with confidence, no config meets them, or a checkpoint is "
        "broken"
    ),
    ExitCode.INCONCLUSIVE: (
        "inconclusive: the records do not decide about a limit, or lack a point asked for"
    ),
    ExitCode.NOTHING_MEASURED: "nothing was measured: every point failed or was refused",
    ExitCode.USAGE: (
        "the command line or a file that a person wrote asks for something that does not exist"
    ),
    ExitCode.REFUSED: "a given folder or file cannot be read or written, or two cannot be compared",
    ExitCode.UNAVAILABLE: (
        "what is needed is missing or failed: an environment, a model, an endpoint, this machine"
    ),
    ExitCode.DEFECT: "a defect of bitbench",
    ExitCode.STOPPED: "stopped with Ctrl-C; finished trials are kept",
    ExitCode.PIPE_CLOSED: "the program that reads the output closed it",
}


class BitbenchError(Exception):
    """An error with its cause and the next step. The command line prints it without a traceback."""

    exit_code = ExitCode.UNAVAILABLE


class UsageError(BitbenchError):
    exit_code = ExitCode.USAGE


class StudyFileError(BitbenchError):
    """An error in a study file. `location` leads to the wrong field, such as ("engines", 0)."""

    exit_code = ExitCode.USAGE

    def __init__(self, message: str, location: tuple[int | str, ...] = ()) -> None:
        super().__init__(message)
        self.location = location


class BusyMachineError(BitbenchError):
    """An error because every trial was rejected. Records are kept, and the same command resumes."""


class EngineEnvironmentError(BitbenchError):
    pass


class NotReadyError(BitbenchError):
    pass


class PlatformError(BitbenchError):
    pass


class PluginError(BitbenchError):
    pass


class ModelError(BitbenchError):
    pass


class RecipeError(BitbenchError):
    exit_code = ExitCode.USAGE


class QuantizeError(BitbenchError):
    """A failure to create a variant. `log_file` contains the output of the backend."""

    def __init__(self, cause: str, log_file: Path | None = None) -> None:
        message = cause
        if log_file:
            message = f"{cause} (its log: {log_file})"
        super().__init__(message)
        self.cause = cause
        self.log_file = log_file


class KernelError(BitbenchError):
    pass


class QualityError(BitbenchError):
    pass


class LoadError(BitbenchError):
    pass


class ProfileError(BitbenchError):
    pass


class StoreError(BitbenchError):
    exit_code = ExitCode.REFUSED


class RowsNotKeptError(StoreError):
    pass


class FleetError(BitbenchError):
    pass


class NotComparableError(BitbenchError):
    exit_code = ExitCode.REFUSED


class CannotExplainError(BitbenchError):
    exit_code = ExitCode.REFUSED


class CannotCompareError(BitbenchError):
    exit_code = ExitCode.REFUSED


class UndecidedError(BitbenchError):
    exit_code = ExitCode.INCONCLUSIVE


class UnreachableError(BitbenchError):
    exit_code = ExitCode.FAILED

"""Errors that a person reads, and how a command ended, as a number: one table for all commands.

Below 64 the command did its work, and the number is the answer of a gate. From 64 on there is no answer: the numbers
are those of `sysexits.h`, so that a regression is never mistaken for a typing error.

BitbenchError               one sentence: what went wrong, where, and what to do next
├── UsageError              an option has a value that cannot be used, or names what does not exist
├── StudyFileError          the study file contains something that cannot be run
├── EngineEnvironmentError  an engine's environment is missing, broken or could not be created
├── PluginError             a package that adds to bitbench cannot be loaded
├── NotReadyError           a study needs environments or models that are not installed here
├── PlatformError           measuring needs Linux, and this is another system
├── ModelError              a model is missing, unreadable or could not be downloaded
├── RecipeError             a recipe is invalid or does not exist
├── QuantizeError           a variant could not be created, or may not be removed
├── KernelError             a kernel case or shape is invalid, or the worker that times it failed
├── QualityError            quality cannot be asked for as the study says it; the variant's quality is unknown
├── BusyMachineError        every trial was rejected, since other work or a late client spoiled it
├── LoadError               the load generator itself failed, not the engine
├── ProfileError            an operator profile could not be taken, or its trace not be read
├── StoreError              a study folder cannot be read or written as it is
│   └── RowsNotKeptError    a record's rows are not in the folder; what needs no rows can be said without them
├── FleetError              no node of a cluster can work on a study, or the cluster cannot be used
├── NotComparableError      two things differ in a fact that would make the comparison wrong
├── CannotExplainError      `bitbench explain` needs something that was not measured
├── CannotCompareError      two studies have nothing in common, or differ in a fact that was not allowed
├── UndecidedError          an objective is about a time that the server's answers do not show
└── UnreachableError        an objective cannot be met: the endpoint takes longer even without load

A point that fails is not an error: it is a result (see `records.trial.Outcome`).
"""

from enum import IntEnum
from pathlib import Path


class ExitCode(IntEnum):
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
        """The row of docs/scripting.md."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.DONE: "done; every limit and objective that was given is met with confidence",
    ExitCode.FAILED: "a limit or objective is missed with confidence, no config meets them, or a checkpoint is broken",
    ExitCode.INCONCLUSIVE: "inconclusive: the records do not decide about a limit, or lack a point asked for",
    ExitCode.NOTHING_MEASURED: "nothing was measured: every point failed or was refused",
    ExitCode.USAGE: "the command line or a file that a person wrote asks for something that does not exist",
    ExitCode.REFUSED: "a given folder or file cannot be read or written, or two cannot be compared",
    ExitCode.UNAVAILABLE: "what is needed is missing or failed: an environment, a model, an endpoint, this machine",
    ExitCode.DEFECT: "a defect of bitbench",
    ExitCode.STOPPED: "stopped with Ctrl-C; finished trials are kept",
    ExitCode.PIPE_CLOSED: "the program that reads the output closed it",
}


class BitbenchError(Exception):
    """What went wrong and what to do next; the command line prints it without a traceback."""

    exit_code = ExitCode.UNAVAILABLE


class UsageError(BitbenchError):
    exit_code = ExitCode.USAGE


class StudyFileError(BitbenchError):
    """`location` leads to the field that is wrong, such as ("engines", 0); the line is found from it."""

    exit_code = ExitCode.USAGE

    def __init__(self, message: str, location: tuple[int | str, ...] = ()) -> None:
        super().__init__(message)
        self.location = location


class BusyMachineError(BitbenchError):
    """Every trial was rejected; what was recorded is kept, and the same command resumes."""


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
    """`log_file`: what a backend wrote before it failed."""

    def __init__(self, cause: str, log_file: Path | None = None) -> None:
        super().__init__(f"{cause} (its log: {log_file})" if log_file else cause)
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

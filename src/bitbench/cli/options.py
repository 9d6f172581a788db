"""The options that several commands share, and parsers of their values."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bitbench.study.environment import Device
from bitbench.study.hardware import KernelDevice
from bitbench.util.errors import UsageError
from bitbench.util.units import parse_seconds


class Format(StrEnum):
    """An output format."""

    TEXT = "text"
    MARKDOWN = "markdown"


StudyFile = Annotated[Path, typer.Argument(help="The study file.", metavar="STUDY")]
AllowInconclusive = Annotated[
    bool,
    typer.Option("--allow-inconclusive", help="End with 0 where an interval contains a limit."),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON document; `bitbench schema` describes it.")
]
OnDevice = Annotated[
    KernelDevice | None,
    typer.Option(
        "--device",
        help="What engines compute on [default: cuda where a GPU can be used, else cpu].",
    ),
]


def parse_device_option(device: KernelDevice | None) -> Device | None:
    """Return the device for a Workplace, or None without the option."""
    if device is None:
        return None
    return "cuda" if device is KernelDevice.CUDA else "cpu"


def parse_words_option(text: str | None) -> tuple[str, ...]:
    """Parse `a, b` as ("a", "b")."""
    words = (word.strip() for word in (text or "").split(","))
    return tuple(word for word in words if word)


def parse_numbers_option(text: str, option: str) -> tuple[float, ...]:
    """Parse positive numbers, without repetitions and in their order. Raise UsageError with the
    option and what it takes."""
    try:
        numbers = tuple(dict.fromkeys(float(word) for word in parse_words_option(text)))
    except ValueError:
        numbers = ()
    if not numbers or not all(0 < number < float("inf") for number in numbers):
        raise UsageError(f"{option}: expected numbers such as 1,2,4, got {text!r}")
    return numbers


def parse_counts_option(text: str, option: str) -> tuple[int, ...]:
    """Parse positive whole numbers as `parse_numbers_option` does. Raise UsageError."""
    numbers = parse_numbers_option(text, option)
    if any(number != int(number) for number in numbers):
        raise UsageError(f"{option}: expected whole numbers such as 1,2,4, got {text!r}")
    return tuple(int(number) for number in numbers)


def parse_seconds_option(text: str, option: str) -> float:
    """Parse a time such as `10m` or `90s`. Raise UsageError unless it is above zero."""
    try:
        seconds = parse_seconds(text)
    except ValueError as problem:
        raise UsageError(f"{option}: {problem}") from None
    if not 0 < seconds < float("inf"):
        raise UsageError(f"{option}: expected a time above zero, got {text!r}")
    return seconds

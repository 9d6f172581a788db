"""What several commands share: options, and the values in them."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bitbench.study.environment import Device
from bitbench.study.hardware import KernelDevice
from bitbench.util.errors import UsageError
from bitbench.util.units import parse_seconds


class Format(StrEnum):
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


def device_option(device: KernelDevice | None) -> Device | None:
    """As a Workplace takes it."""
    return None if device is None else "cuda" if device is KernelDevice.CUDA else "cpu"


def words_option(text: str | None) -> tuple[str, ...]:
    """`a, b` as ("a", "b")."""
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def numbers_option(text: str, option: str) -> tuple[float, ...]:
    """Positive ones, each once, in their order. Raises UsageError with the option and what it takes."""
    try:
        found = tuple(dict.fromkeys(float(word) for word in words_option(text)))
    except ValueError:
        found = ()
    if not found or not all(0 < number < float("inf") for number in found):
        raise UsageError(f"{option}: expected numbers such as 1,2,4, got {text!r}")
    return found


def counts_option(text: str, option: str) -> tuple[int, ...]:
    """Likewise, whole ones."""
    found = numbers_option(text, option)
    if any(number != int(number) for number in found):
        raise UsageError(f"{option}: expected whole numbers such as 1,2,4, got {text!r}")
    return tuple(int(number) for number in found)


def seconds_option(text: str, option: str) -> float:
    """`10m`, `90s`."""
    try:
        found = parse_seconds(text)
    except ValueError as problem:
        raise UsageError(f"{option}: {problem}") from None
    if not 0 < found < float("inf"):
        raise UsageError(f"{option}: expected a time above zero, got {text!r}")
    return found

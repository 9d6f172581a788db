"""What several commands share: options, and the end of one that answers with a document or as JSON."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from bitbench.study.kernel_device import KernelDevice

if TYPE_CHECKING:
    from bitbench.study.base import Record
    from bitbench.study.environment import Device
    from bitbench.util.exit_codes import ExitCode


class Format(StrEnum):
    TEXT = "text"
    MARKDOWN = "markdown"


AllowInconclusive = Annotated[
    bool, typer.Option("--allow-inconclusive", help="End with 0 where an interval contains a limit.")
]
InsecureCluster = Annotated[
    bool, typer.Option("--insecure-cluster", help="Accept a Ray cluster that asks for no token.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document; `bitbench schema` describes it.")]
OnDevice = Annotated[
    KernelDevice | None,
    typer.Option("--device", help="What engines compute on [default: cuda where a GPU can be used, else cpu]."),
]


def chosen(device: "KernelDevice | None") -> "Device | None":
    """As a Workplace takes it."""
    return None if device is None else "cuda" if device is KernelDevice.CUDA else "cpu"


def end_with_json(command: str, answer: "Record", exit_code: "ExitCode") -> NoReturn:
    """The only thing on stdout."""
    from bitbench.cli.json_answers import answer_text

    typer.echo(answer_text(command, answer, exit_code))
    raise typer.Exit(exit_code)

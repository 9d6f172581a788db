"""`bitbench plan-gpu`: what a study would take on a GPU you do not have here."""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.cli.options import AsJson, end_with_json
from bitbench.cli.plan import exit_code_of
from bitbench.features.gpu_plan.classes import DEVICE_CLASSES
from bitbench.features.gpu_plan.classes import device_class as class_called
from bitbench.features.gpu_plan.computing import answer_plan_gpu
from bitbench.features.gpu_plan.words import show_plan_gpu
from bitbench.measure.trust import trust_in
from bitbench.measure.workplace import Workplace


def plan_gpu(
    study: Annotated[Path, typer.Argument(help="The study file.", metavar="STUDY")],
    *,
    device_class: Annotated[
        str, typer.Option("--device-class", metavar="NAME", help=f"The GPU: {', '.join(DEVICE_CLASSES)}.")
    ],
    price_per_hour: Annotated[
        float | None, typer.Option(min=0, metavar="PRICE", help="Price of one such device per hour, for the cost.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a study would take on a GPU you do not have here.

    Prints the points, the kernels expected on such a GPU, the memory needed, what does not fit, hours by roofline, and
    the cost at your price. Runs nothing, and measures nothing. Exit code 3: every point is refused.
    """
    at = Workplace()
    answer = answer_plan_gpu(study, class_called(device_class), at, price_per_hour)
    code = exit_code_of(answer.plan)
    if as_json:
        end_with_json("plan-gpu", answer, code)
    show_plan_gpu(answer, trust_in(study, at.home))
    raise typer.Exit(code)

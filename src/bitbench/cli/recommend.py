"""`bitbench recommend`: what to run under these limits, and why not the others."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bitbench.cli.compare import Format

if TYPE_CHECKING:
    from bitbench.core.found.recommendation import Limits, Recommendation
    from bitbench.statistics.recommend import Counted
    from bitbench.store.folder import StudyFolder


def recommend(
    folder: Annotated[Path, typer.Argument(help="a folder that `bitbench run` filled", metavar="STUDY_DIR")],
    *,
    slo: Annotated[
        str | None, typer.Option("--slo", metavar="LIMITS", help="such as ttft_p99=300ms,tpot_p99=50ms")
    ] = None,
    max_memory: Annotated[
        str | None, typer.Option("--max-memory", metavar="SIZE", help="such as 4GB: peak of all its processes")
    ] = None,
    max_quality_loss: Annotated[
        str | None, typer.Option("--max-quality-loss", metavar="SHARE", help="such as 1%: against the baseline")
    ] = None,
    price_per_hour: Annotated[
        float | None, typer.Option("--price-per-hour", min=0.0, help="of the machine; gives cost per million tokens")
    ] = None,
    workload: Annotated[
        list[str] | None, typer.Option("--workload", help="answer for this one only [default: each of the study]")
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="markdown: a page to keep")] = Format.TEXT,
) -> None:
    """Say which variant to run on which engine, what it gains, and what rules out the others.

    Exit code 0: each workload has an answer. 1: for one, no contender meets the limits. 2: for one, it cannot be told
    with these trials. 3: the question or the folder cannot be read.
    """
    from rich.console import Console

    from bitbench.ground.errors import BitbenchError, CannotRecommendError
    from bitbench.report.sections.recommend import markdown_recommendation, render_recommendation

    try:
        found = _recommend(
            folder, _limits(slo, max_memory, max_quality_loss), workloads=workload or [], price=price_per_hour
        )
    except BitbenchError as error:  # a folder that cannot be read must not look like an answer
        raise CannotRecommendError(str(error)) from error
    if form is Format.MARKDOWN:
        typer.echo(markdown_recommendation(found), nl=False)
    else:
        render_recommendation(found, Console())
    raise typer.Exit(found.exit_code)


def _limits(slo: str | None, memory: str | None, loss: str | None) -> "Limits":
    from pydantic import TypeAdapter, ValidationError

    from bitbench.core.asked.objective import Objectives
    from bitbench.core.found.recommendation import Limits
    from bitbench.ground.errors import CannotRecommendError
    from bitbench.ground.units import parse_bytes, parse_fraction

    try:
        return Limits(
            objectives=TypeAdapter(Objectives).validate_python(slo) if slo else (),
            memory_bytes=parse_bytes(memory) if memory else None,
            quality_loss=parse_fraction(loss) if loss else None,
        )
    except ValidationError as error:
        raise CannotRecommendError(f"--slo: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error
    except ValueError as error:
        raise CannotRecommendError(str(error)) from error


def _recommend(path: Path, limits: "Limits", *, workloads: list[str], price: float | None) -> "Recommendation":
    from bitbench.lab.study import Lab
    from bitbench.statistics.recommend import recommend
    from bitbench.store.folder import StudyFolder

    folder = StudyFolder.existing(path)
    return recommend(
        Lab().summary(folder),
        limits,
        workloads=workloads,
        counted=_counted(folder, limits),
        price_per_hour=price,
    )


def _counted(folder: "StudyFolder", limits: "Limits") -> "Counted":
    """Objectives that no figure of a trial answers, such as ttft_p90, from the request rows."""
    from bitbench.statistics.objectives import objective_estimates
    from bitbench.statistics.recommend import objectives_to_count

    wanted = objectives_to_count(limits.objectives)
    if not wanted:
        return {}
    records = folder.read()
    trials = [trial for trial in records.trials if trial.counts and trial.requests_file]
    return {
        objective.name: objective_estimates(
            objective,
            ((trial, records.requests_of(trial, None)) for trial in trials),
            seed=records.study.seed,
            confidence=records.study.measure.confidence,
        )
        for objective in wanted
    }

"""`bitbench compare`: did it get slower? Yes, no, or not to be told, with an exit code."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bitbench.core.found.facts import Fact

if TYPE_CHECKING:
    from bitbench.core.cell import Contender, Plan
    from bitbench.core.found.comparison import Comparison


LONGEST_MESSAGE = 2000  # names in it come from files


class Format(StrEnum):
    TEXT = "text"
    MARKDOWN = "markdown"


def compare(
    baseline: Annotated[Path, typer.Argument(help="the study folder to compare with", metavar="BASELINE_DIR")],
    candidate: Annotated[Path | None, typer.Argument(help="the study folder in question", metavar="STUDY_DIR")] = None,
    *,
    variants: Annotated[
        tuple[str, str] | None,
        typer.Option("--variants", metavar="OLD NEW", help="compare two variants or contenders of one folder instead"),
    ] = None,
    fail_if: Annotated[
        list[str] | None, typer.Option("--fail-if", metavar="LIMIT", help='such as "output_throughput < -3%"')
    ] = None,
    allow: Annotated[list[Fact] | None, typer.Option("--allow", help="a fact that may differ")] = None,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", help="a figure to show [default: the headline of the study]")
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="markdown: for a pull request")] = Format.TEXT,
) -> None:
    """Compare two study folders, or two variants of one, cell by cell.

    Exit code 1: a limit is surely broken. 2: it cannot be told, and how many more starts would tell. 3: not comparable.
    """
    from rich.console import Console

    from bitbench.ground.errors import BitbenchError, CannotCompareError
    from bitbench.report.document.text import plain
    from bitbench.report.sections.comparison import markdown_comparison, render_comparison

    try:
        comparison = _compare(
            baseline, candidate, variants=variants, fail_if=fail_if or [], allow=allow or [], metrics=metric or []
        )
    except BitbenchError as error:  # a folder that cannot be read must not look like a regression
        raise CannotCompareError(plain(str(error), LONGEST_MESSAGE)) from error
    if form is Format.MARKDOWN:
        typer.echo(markdown_comparison(comparison), nl=False)
    else:
        render_comparison(comparison, Console())
    raise typer.Exit(comparison.exit_code)


def _compare(
    baseline: Path,
    candidate: Path | None,
    *,
    variants: tuple[str, str] | None,
    fail_if: list[str],
    allow: list[Fact],
    metrics: list[str],
) -> "Comparison":
    from bitbench.ground.errors import CannotCompareError
    from bitbench.statistics.gate import parse_condition, parse_metric
    from bitbench.statistics.studies import compare_contenders, compare_studies
    from bitbench.store.folder import StudyFolder

    conditions = [parse_condition(text) for text in fail_if]
    shown = [parse_metric(name) for name in metrics]
    if (candidate is None) is (variants is None):
        raise CannotCompareError("give two study folders, or one and --variants OLD NEW")
    before = StudyFolder.existing(baseline).read()
    if variants is not None:
        return compare_contenders(before, _pairs(before.plan, *variants), metrics=shown, conditions=conditions)
    assert candidate is not None
    return compare_studies(
        before, StudyFolder.existing(candidate).read(), metrics=shown, conditions=conditions, allowed=allow
    )


def _pairs(plan: "Plan", old: str, new: str) -> list[tuple["Contender", "Contender"]]:
    """By full name; or two variants on each engine that has both; or two engines with each variant that has both."""
    from bitbench.ground.errors import CannotCompareError

    for key, other in (("name", "name"), ("variant", "engine"), ("engine", "variant")):
        sides = [[one for one in plan.contenders if getattr(one, key) == wanted] for wanted in (old, new)]
        if all(sides):
            pairs = [
                (one, two)
                for one in sides[0]
                for two in sides[1]
                if key == "name" or getattr(one, other) == getattr(two, other)
            ]
            if pairs:
                return pairs
    raise CannotCompareError(
        f"{old} and {new} are no two variants, engines or contenders of this study that can be paired; "
        f"it has {', '.join(one.name for one in plan.contenders)}"
    )

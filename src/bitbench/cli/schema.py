"""`bitbench schema`: the JSON Schema of a study file or recipe, or of a command's --json output."""

import json
from typing import Annotated

import typer

from bitbench.cli.json_answers import collect_answers, make_answer_schema
from bitbench.quantize.catalog import make_recipe_schema
from bitbench.study.study_file import make_study_schema
from bitbench.util.errors import UsageError
from bitbench.util.text import suggest_name

FILES = {"study": make_study_schema, "recipe": make_recipe_schema}


def schema(
    of: Annotated[
        str, typer.Argument(help="study or recipe, or a command that has --json.", metavar="WHAT")
    ] = "study",
) -> None:
    """Print the JSON Schema of a file to write, or of an answer."""
    names = [*FILES, *collect_answers()]
    if of not in names:
        raise UsageError(
            f"{of} has no JSON Schema; {suggest_name(of, names)}known are {', '.join(names)}"
        )
    content = FILES[of]() if of in FILES else make_answer_schema(of)
    typer.echo(json.dumps(content, indent=2, ensure_ascii=False))

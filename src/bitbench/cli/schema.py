"""`bitbench schema`: the JSON Schema of a study file or recipe, or of a command's --json output."""

import json
from typing import Annotated

import typer

from bitbench.cli.json_answers import answer_schema, answers_by_command
from bitbench.quantize.catalog import recipe_schema
from bitbench.study.study_file import study_schema
from bitbench.util.errors import UsageError
from bitbench.util.text import did_you_mean

FILES = {"study": study_schema, "recipe": recipe_schema}


def schema(
    of: Annotated[
        str, typer.Argument(help="study or recipe, or a command that has --json.", metavar="WHAT")
    ] = "study",
) -> None:
    """Print the JSON Schema of a file to write, or of an answer."""
    names = [*FILES, *answers_by_command()]
    if of not in names:
        raise UsageError(
            f"{of} has no JSON Schema; {did_you_mean(of, names)}known are {', '.join(names)}"
        )
    content = FILES[of]() if of in FILES else answer_schema(of)
    typer.echo(json.dumps(content, indent=2, ensure_ascii=False))
